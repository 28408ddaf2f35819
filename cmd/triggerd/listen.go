package main

import (
	"net"
	"net/netip"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// listenFlags say where a replica answers, and how.
type listenFlags struct {
	Listen         string `help:"Address to answer on." default:"127.0.0.1:8080"`
	TLSCert        string `name:"tls-cert" help:"PEM file with the certificate to answer with, and its chain; read again when it changes." placeholder:"FILE"`
	TLSKey         string `name:"tls-key" help:"PEM file with the certificate's key." placeholder:"FILE"`
	InsecureListen bool   `help:"Allow --listen beyond this machine without TLS: behind a proxy, or in a private network."`
}

// check refuses to send tokens over a network in plain text, unless somebody
// has said that it is meant.
func (f listenFlags) check() error {
	if f.TLSKey == "" && f.TLSCert != "" {
		return tracker.Fieldf("--tls-key", "is missing; --tls-cert needs it")
	}
	if f.TLSCert == "" && f.TLSKey != "" {
		return tracker.Fieldf("--tls-cert", "is missing; --tls-key needs it")
	}
	if _, _, err := net.SplitHostPort(f.Listen); err != nil {
		return tracker.Fieldf("--listen", "must be host:port")
	}
	if f.insecure() && !f.InsecureListen {
		return tracker.Fieldf("--listen", "is not of this machine alone: give --tls-cert and --tls-key, or --insecure-listen if a proxy or a private network is before it")
	}
	return nil
}

// insecure reports whether others can reach the address, and there is no TLS.
func (f listenFlags) insecure() bool {
	host, _, _ := net.SplitHostPort(f.Listen)
	if f.TLSCert != "" || host == "localhost" {
		return false
	}
	// A name may be of any address, and no host is all of them.
	addr, err := netip.ParseAddr(host)
	return err != nil || !addr.Unmap().IsLoopback()
}
