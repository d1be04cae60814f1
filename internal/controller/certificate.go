package controller

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/wire"
)

// A certificate ends soon when less is left than soonAtMost and than a tenth of its life: an issuer that renews
// after two thirds has failed for long by then, also with certificates of a day.
const (
	soonAtMost = 7 * 24 * time.Hour
	soonPart   = 10
)

// certificateCurrent judges the certificates that the gateways serve, as they report them: the operator cannot read
// the Secret. A pool without TLS has no such condition.
func certificateCurrent(v view) verdict {
	t := v.pool.Spec.Gateway.TLS
	if t == nil {
		return verdict{}
	}
	reports := v.seen.load.Certificates
	if len(reports) == 0 {
		return verdict{metav1.ConditionUnknown, ReasonNotObserved, "no gateway has reported its certificate"}
	}
	oldest := reports[0]
	for _, c := range reports {
		if reason, why := noCertificate(v, c); reason != "" {
			return no(reason, "%s", why)
		}
		if c.Problem != "" {
			return no(ReasonCertificateInvalid, "pod %s cannot use what the Secret %s has now and serves the certificate that it had, until %s: %s", c.Pod, t.SecretName, date(c.NotAfter), c.Message)
		}
		if c.NotAfter < oldest.NotAfter {
			oldest = c
		}
	}
	ends := time.Unix(oldest.NotAfter, 0)
	left, life := ends.Sub(v.seen.now), ends.Sub(time.Unix(oldest.NotBefore, 0))
	switch {
	case left <= 0:
		return no(ReasonCertificateExpired, "the certificate in the Secret %s ended on %s: clients that check it are refused", t.SecretName, date(oldest.NotAfter))
	case left < min(soonAtMost, life/soonPart):
		return no(ReasonCertificateEndsSoon, "the certificate in the Secret %s ends on %s and was not renewed", t.SecretName, date(oldest.NotAfter))
	}
	return yes(ReasonCertificateServed, "the certificate in the Secret %s is served, until %s", t.SecretName, date(oldest.NotAfter))
}

// noCertificate says why a gateway has no certificate at all, and what to do; no reason, it has one. Such a pod is
// never Ready.
func noCertificate(v view, c fleet.Certificate) (reason, why string) {
	secret := v.pool.Spec.Gateway.TLS.SecretName
	switch {
	case c.NotAfter != 0:
		return "", ""
	case c.Problem == wire.TLSMissing:
		return ReasonCertificateMissing, fmt.Sprintf("pod %s waits for the Secret %s with tls.crt and tls.key: create it in the namespace %s "+
			"(kubectl create secret tls %s --cert=FILE --key=FILE, or a cert-manager Certificate with that secretName)", c.Pod, secret, v.pool.Namespace, secret)
	}
	return ReasonCertificateInvalid, fmt.Sprintf("pod %s cannot use the Secret %s: %s", c.Pod, secret, c.Message)
}

// withoutCertificate is noCertificate of the first of the pods that has none.
func withoutCertificate(v view, pods []corev1.Pod) (reason, why string) {
	if v.pool.Spec.Gateway.TLS == nil {
		return "", ""
	}
	for _, c := range v.seen.load.Certificates {
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == c.Pod }) {
			continue
		}
		if reason, why = noCertificate(v, c); reason != "" {
			return reason, why
		}
	}
	return "", ""
}

// date is an absolute time: one that is relative would change the message on every tick.
func date(unix int64) string { return time.Unix(unix, 0).UTC().Format(time.RFC3339) }
