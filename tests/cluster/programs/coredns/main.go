// Command coredns is CoreDNS with the plugins that a cluster's DNS needs and no others.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

// A query passes the plugins in this order.
func init() {
	dnsserver.Directives = []string{"bind", "ready", "errors", "cache", "hosts", "kubernetes"}
}

func main() { coremain.Run() }
