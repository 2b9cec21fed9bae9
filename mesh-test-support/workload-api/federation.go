// The bundle of a trust domain, served and fetched by go-spiffe (SPIFFE Federation, https_spiffe).
//
//	mesh-workload-api endpoint ADDRESS DOMAIN
//	mesh-workload-api bundle URL SPIFFE_ID FILE
//
// `endpoint` serves the bundle of a trust domain that it creates. It prints the bundle when it
// listens, and again after each command that it reads from standard input:
//
//	prepare   adds another authority
//	activate  authenticates by a certificate of the authority that was added last
//	retire    removes all other authorities
//	withdraw  removes all authorities
//	pretend   authenticates by an identity of another trust domain
//
// `bundle` fetches a bundle from the server with this identity, which it authenticates by the
// bundle in FILE, and prints it.

package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/federation"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// The bundle that an endpoint serves, and its certificate.
type served struct {
	mutex    sync.Mutex
	id       spiffeid.ID
	domain   *domain
	bundle   *spiffebundle.Bundle
	sequence uint64
	svid     *x509svid.SVID
}

func (s *served) GetX509SVID() (*x509svid.SVID, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.svid, nil
}

func (s *served) GetBundleForTrustDomain(name spiffeid.TrustDomain) (*spiffebundle.Bundle, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.bundle.GetBundleForTrustDomain(name)
}

func (s *served) command(command string) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var err error
	switch command {
	case "prepare":
		var next *authority
		if next, err = newAuthority(s.id.TrustDomain()); err == nil {
			s.domain.authorities = append(s.domain.authorities, next)
		}
	case "activate":
		s.domain.active = s.domain.authorities[len(s.domain.authorities)-1]
		s.svid, err = s.domain.active.issue(s.id)
	case "retire":
		s.domain.authorities = []*authority{s.domain.active}
	case "withdraw":
		s.domain.authorities = nil
	case "pretend":
		other := spiffeid.RequireFromString("spiffe://pretended.example/bundle")
		s.svid, err = s.domain.active.issue(other)
	default:
		err = fmt.Errorf("unknown command %q", command)
	}
	if err != nil {
		return err
	}
	return s.publish()
}

// publish serves the authorities with the next sequence, and prints the bundle.
func (s *served) publish() error {
	bundle := spiffebundle.New(s.id.TrustDomain())
	for _, authority := range s.domain.authorities {
		bundle.AddX509Authority(authority.certificate)
	}
	s.sequence++
	bundle.SetSequenceNumber(s.sequence)
	bundle.SetRefreshHint(time.Second)
	document, err := bundle.Marshal()
	if err != nil {
		return err
	}
	s.bundle = bundle
	fmt.Println(string(document))
	return nil
}

func endpoint(address, name string) error {
	trustDomain, err := spiffeid.TrustDomainFromString(name)
	if err != nil {
		return err
	}
	first, err := newAuthority(trustDomain)
	if err != nil {
		return err
	}
	served := &served{
		id:     spiffeid.RequireFromPath(trustDomain, "/bundle"),
		domain: &domain{[]*authority{first}, first},
	}
	if served.svid, err = first.issue(served.id); err != nil {
		return err
	}
	handler, err := federation.NewHandler(trustDomain, served)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           handler,
		TLSConfig:         tlsconfig.TLSServerConfig(served),
		ReadHeaderTimeout: time.Minute,
	}
	if err := served.publish(); err != nil {
		return err
	}
	go func() {
		// Until the process ends.
		_ = server.ServeTLS(listener, "", "")
	}()
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		if err := served.command(commands.Text()); err != nil {
			return err
		}
	}
	return commands.Err()
}

func fetchBundle(url, serverID, file string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	expected, err := spiffeid.FromString(serverID)
	if err != nil {
		return err
	}
	first, err := spiffebundle.Load(expected.TrustDomain(), file)
	if err != nil {
		return err
	}
	bundle, err := federation.FetchBundle(ctx, expected.TrustDomain(), url,
		federation.WithSPIFFEAuth(first, expected))
	if err != nil {
		return err
	}
	document, err := bundle.Marshal()
	if err != nil {
		return err
	}
	fmt.Println(string(document))
	return nil
}
