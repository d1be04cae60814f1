package controller

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		switch {
		case c.Problem == wire.TLSMissing && c.NotAfter == 0:
			return no(ReasonCertificateMissing, "pod %s waits for the Secret %s with tls.crt and tls.key", c.Pod, t.SecretName)
		case c.NotAfter == 0:
			return no(ReasonCertificateInvalid, "pod %s cannot use the Secret %s: %s", c.Pod, t.SecretName, c.Message)
		case c.Problem != "":
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

// date is an absolute time: one that is relative would change the message on every tick.
func date(unix int64) string { return time.Unix(unix, 0).UTC().Format(time.RFC3339) }
