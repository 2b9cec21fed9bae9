// A server of the SPIFFE Workload API, made of go-spiffe's types, whose changes a test commands, and
// a peer that verifies as go-spiffe does. `cargo xtask setup` builds it.
//
//	mesh-workload-api serve DIRECTORY ID...
//	mesh-workload-api get SOCKET ADDRESS SERVER_NAME SERVER_ID
//
// federation.go has more commands.
//
// `serve` has a socket for each identity, DIRECTORY/NAME.sock with the last segment of the identity
// as NAME, and an authority for each trust domain. It reads commands from standard input, and
// prints each when it is done:
//
//	renew     issues other certificates
//	prepare   adds another authority to the bundle of each trust domain
//	activate  issues the certificates of the authorities that were added last
//	retire    removes all other authorities from the bundles
//	federate  sends each identity the bundles of the other trust domains
//	part      does not send them any longer
//	forget    refuses all identities
//	close     removes the sockets and ends all connections
//	open      listens again
//
// `get` takes an identity from a socket, connects to an address by TLS with this server name, and
// prints the response to a request.
package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) >= 3 && args[0] == "serve":
		return serve(args[1], args[2:])
	case len(args) == 5 && args[0] == "get":
		return get(args[1], args[2], args[3], args[4])
	case len(args) == 3 && args[0] == "endpoint":
		return endpoint(args[1], args[2])
	case len(args) == 4 && args[0] == "bundle":
		return fetchBundle(args[1], args[2], args[3])
	default:
		return fmt.Errorf("usage: serve DIRECTORY ID... | get SOCKET ADDRESS SERVER_NAME SERVER_ID | endpoint ADDRESS DOMAIN | bundle URL SPIFFE_ID FILE")
	}
}

// An authority of a trust domain.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(domain spiffeid.TrustDomain) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := template(domain.ID().URL())
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	certificate, err := sign(template, template, key.Public(), key)
	return &authority{certificate, key}, err
}

// issue returns a certificate for an identity, by an intermediate authority as SPIRE has them. It
// has a DNS name too, as `-dns` of SPIRE's entries adds it.
func (a *authority) issue(id spiffeid.ID) (*x509svid.SVID, error) {
	between, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	intermediate := template(id.TrustDomain().ID().URL())
	intermediate.IsCA = true
	intermediate.BasicConstraintsValid = true
	intermediate.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	issuer, err := sign(intermediate, a.certificate, between.Public(), a.key)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf := template(id.URL())
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	leaf.DNSNames = []string{"unrelated.test"}
	certificate, err := sign(leaf, issuer, key.Public(), between)
	if err != nil {
		return nil, err
	}
	chain := []*x509.Certificate{certificate, issuer}
	return &x509svid.SVID{ID: id, Certificates: chain, PrivateKey: key}, nil
}

func template(uri *url.URL) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"mesh-workload-api"}, SerialNumber: serial.String()},
		URIs:         []*url.URL{uri},
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(time.Hour),
	}
}

func sign(template, parent *x509.Certificate, public, key any) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// The authorities of a trust domain. The last one is new, and issues when it is active.
type domain struct {
	authorities []*authority
	active      *authority
}

// What the server sends. Each change closes `changed` and replaces it.
type state struct {
	mutex    sync.Mutex
	changed  chan struct{}
	domains  map[spiffeid.TrustDomain]*domain
	svids    map[spiffeid.ID]*x509svid.SVID
	federate bool
	forget   bool
}

func newState(ids []spiffeid.ID) (*state, error) {
	s := &state{
		changed: make(chan struct{}),
		domains: map[spiffeid.TrustDomain]*domain{},
		svids:   map[spiffeid.ID]*x509svid.SVID{},
	}
	for _, id := range ids {
		if s.domains[id.TrustDomain()] == nil {
			first, err := newAuthority(id.TrustDomain())
			if err != nil {
				return nil, err
			}
			s.domains[id.TrustDomain()] = &domain{[]*authority{first}, first}
		}
		s.svids[id] = nil
	}
	return s, s.renew()
}

func (s *state) renew() error {
	for id := range s.svids {
		svid, err := s.domains[id.TrustDomain()].active.issue(id)
		if err != nil {
			return err
		}
		s.svids[id] = svid
	}
	return nil
}

func (s *state) command(command string) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	defer func() {
		close(s.changed)
		s.changed = make(chan struct{})
	}()
	switch command {
	case "renew":
		return s.renew()
	case "prepare":
		for name, domain := range s.domains {
			authority, err := newAuthority(name)
			if err != nil {
				return err
			}
			domain.authorities = append(domain.authorities, authority)
		}
	case "activate":
		for _, domain := range s.domains {
			domain.active = domain.authorities[len(domain.authorities)-1]
		}
		return s.renew()
	case "retire":
		for _, domain := range s.domains {
			domain.authorities = []*authority{domain.active}
		}
	case "federate", "part":
		s.federate = command == "federate"
	case "forget":
		s.forget = true
	default:
		return fmt.Errorf("unknown command %q", command)
	}
	return nil
}

// response returns what an identity is sent, and a channel that is closed when it has changed.
func (s *state) response(id spiffeid.ID) (*workload.X509SVIDResponse, <-chan struct{}, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.forget {
		return nil, s.changed, status.Error(codes.PermissionDenied, "no identity issued")
	}
	chain, key, err := s.svids[id].MarshalRaw()
	if err != nil {
		return nil, s.changed, err
	}
	response := &workload.X509SVIDResponse{FederatedBundles: map[string][]byte{}}
	for name, domain := range s.domains {
		bundle := x509bundle.New(name)
		for _, authority := range domain.authorities {
			bundle.AddX509Authority(authority.certificate)
		}
		var der []byte
		for _, authority := range bundle.X509Authorities() {
			der = append(der, authority.Raw...)
		}
		if name == id.TrustDomain() {
			response.Svids = []*workload.X509SVID{{
				SpiffeId:    id.String(),
				X509Svid:    chain,
				X509SvidKey: key,
				Bundle:      der,
			}}
		} else if s.federate {
			response.FederatedBundles[name.IDString()] = der
		}
	}
	return response, s.changed, nil
}

// The API of one identity.
type api struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	state *state
	id    spiffeid.ID
}

func (a *api) FetchX509SVID(_ *workload.X509SVIDRequest, stream workload.SpiffeWorkloadAPI_FetchX509SVIDServer) error {
	fields, _ := metadata.FromIncomingContext(stream.Context())
	if values := fields.Get("workload.spiffe.io"); len(values) != 1 || values[0] != "true" {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	for {
		response, changed, err := a.state.response(a.id)
		if err != nil {
			return err
		}
		if err := stream.Send(response); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func serve(directory string, names []string) error {
	var ids []spiffeid.ID
	for _, name := range names {
		id, err := spiffeid.FromString(name)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	state, err := newState(ids)
	if err != nil {
		return err
	}
	servers, err := listen(directory, state, ids)
	if err != nil {
		return err
	}
	fmt.Println("open")
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		command := commands.Text()
		switch command {
		case "close":
			for _, server := range servers {
				server.Stop()
			}
		case "open":
			servers, err = listen(directory, state, ids)
		default:
			err = state.command(command)
		}
		if err != nil {
			return err
		}
		fmt.Println(command)
	}
	return commands.Err()
}

// listen opens the sockets, for processes of any user.
func listen(directory string, state *state, ids []spiffeid.ID) ([]*grpc.Server, error) {
	var servers []*grpc.Server
	for _, id := range ids {
		segments := strings.Split(id.Path(), "/")
		path := filepath.Join(directory, segments[len(segments)-1]+".sock")
		listener, err := net.Listen("unix", path)
		if err != nil {
			return nil, err
		}
		if err := os.Chmod(path, 0o777); err != nil {
			return nil, err
		}
		server := grpc.NewServer()
		workload.RegisterSpiffeWorkloadAPIServer(server, &api{state: state, id: id})
		servers = append(servers, server)
		go func() {
			// Ends with `close`.
			_ = server.Serve(listener)
		}()
	}
	return servers, nil
}

func get(socket, address, serverName, serverID string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	expected, err := spiffeid.FromString(serverID)
	if err != nil {
		return err
	}
	client := workloadapi.WithClientOptions(workloadapi.WithAddr("unix://" + socket))
	source, err := workloadapi.NewX509Source(ctx, client)
	if err != nil {
		return err
	}
	defer source.Close()
	config := tlsconfig.MTLSClientConfig(source, source, tlsconfig.AuthorizeID(expected))
	config.ServerName = serverName
	tcp, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	connection := tls.Client(tcp, config)
	defer connection.Close()
	if err := connection.HandshakeContext(ctx); err != nil {
		return err
	}
	request := "GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n"
	if _, err := io.WriteString(connection, request); err != nil {
		return err
	}
	response, err := io.ReadAll(connection)
	if err != nil {
		return err
	}
	fmt.Print(string(response))
	return nil
}
