// Command kubenode holds the real programs of a Kubernetes node in one binary, so that they are linked once and
// share one file on disk. The name it is called by, or else its first argument, says which program it is.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func(args []string) int{
	"etcd":                    runEtcd,
	"kubectl":                 runKubectl,
	"kube-apiserver":          daemon(apiserver.NewAPIServerCommand),
	"kube-controller-manager": daemon(controllers.NewControllerManagerCommand),
	"kube-proxy":              daemon(proxy.NewProxyCommand),
	"kube-scheduler":          daemon(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 daemon(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
}

func main() {
	args := append([]string{filepath.Base(os.Args[0])}, os.Args[1:]...)
	if programs[args[0]] == nil && len(args) > 1 {
		args = args[1:]
	}
	run := programs[args[0]]
	if run == nil {
		fmt.Fprintf(os.Stderr, "kubenode: no program %q; it has %s\n", args[0], strings.Join(names(), ", "))
		os.Exit(2)
	}
	os.Args = args
	os.Exit(run(args))
}

func names() []string {
	var all []string
	for name := range programs {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func daemon(command func() *cobra.Command) func([]string) int {
	return func(args []string) int {
		root := command()
		root.SetArgs(args[1:])
		return cli.Run(root)
	}
}

func runEtcd(args []string) int {
	etcdmain.Main(args)
	return 0
}

func runKubectl([]string) int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		return 1
	}
	return 0
}
