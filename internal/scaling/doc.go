// Package scaling decides how many workers and batchers a pool has. It is pure: no client, no clock, no
// goroutine; the caller passes the instant, and the simulator runs the very same code.
package scaling
