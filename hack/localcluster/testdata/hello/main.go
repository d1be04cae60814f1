// Command hello is the smoke test's workload: it answers with its pod's name and the GPUs it was given, and resolves
// or fetches a name when asked to.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
)

func main() {
	if len(os.Args) == 3 {
		if err := client(os.Args[1], os.Args[2]); err != nil {
			log.Fatal(err)
		}
		return
	}
	log.Printf("serving as user %d", os.Getuid())
	log.Fatal(http.ListenAndServe(":8080", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		host, _ := os.Hostname()
		fmt.Fprintln(w, host, os.Getenv("NVIDIA_VISIBLE_DEVICES"))
	})))
}

func client(action, name string) error {
	if action == "lookup" {
		addresses, err := net.LookupHost(name)
		fmt.Println(addresses)
		return err
	}
	response, err := http.Get(name)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}
