// Command probe is what the cluster's own checks run in pods: `probe serve ADDRESS` answers every request with 200,
// `probe get URL` asks once and ends with status 0 on 200, 1 on anything else, after 3 s at most.
package main

import (
	"fmt"
	"net/http"
	"os"
	"time"
)

func main() {
	if len(os.Args) != 3 {
		fail("usage: probe serve ADDRESS | probe get URL")
	}
	switch os.Args[1] {
	case "serve":
		fail(http.ListenAndServe(os.Args[2], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "here")
		})))
	case "get":
		client := http.Client{Timeout: 3 * time.Second}
		answer, err := client.Get(os.Args[2])
		if err != nil {
			fail(err)
		}
		if answer.StatusCode != http.StatusOK {
			fail(answer.Status)
		}
		fmt.Println(answer.Status)
	default:
		fail("no command " + os.Args[1])
	}
}

func fail(why any) {
	fmt.Fprintln(os.Stderr, "probe:", why)
	os.Exit(1)
}
