module awaken.dev/tests/cluster/probe

go 1.26.0
