# Sourced. Runs the parts of a longer job, keeps how long each took, and prints a table at the end.
# Relies on bash alone. A part that fails ends the job; the table is printed all the same.

parts_names=()
parts_took=()
parts_started=$SECONDS
parts_running=

# part NAME COMMAND...: runs the command under a heading. It stands alone, with no `||` behind it, since bash would then
# go on after a failed line inside a function.
part() {
  parts_running=$1 parts_from=$SECONDS
  shift
  printf '\n== %s\n' "$parts_running"
  "$@"
  parts_names+=("$parts_running")
  parts_took+=("$((SECONDS - parts_from)) s")
  parts_running=
}

# parts_table: what has run so far, with the sum. Call it from an EXIT trap.
parts_table() {
  local i
  if [ -n "$parts_running" ]; then
    parts_names+=("$parts_running")
    parts_took+=("$((SECONDS - parts_from)) s, failed")
  fi
  [ ${#parts_names[@]} -gt 0 ] || return 0
  printf '\n%-34s %s\n' "part" "took"
  for i in "${!parts_names[@]}"; do
    printf '%-34s %s\n' "${parts_names[$i]}" "${parts_took[$i]}"
  done
  printf '%-34s %s\n' "all of it" "$((SECONDS - parts_started)) s"
}
