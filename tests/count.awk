# Reads CTest's log, which has every program's output; prints how many cases passed, failed and were skipped. A program without cmocka's
# summary counts as one case. One that ran none has failed: its filter or its list is wrong. The failed cases, with the last 20 lines of
# the output of each, are appended to the file `failures`; `build` is the name of the build in these lines.
function keep(what, i) {
  print "failed: " name ": " what " (" build ")" >>failures
  for (i = n > 20 ? n - 20 : 0; i < n; i++) print "  | " last[i] >>failures
  kept++
}
function close_test(ok) {
  if (ok && closed && !np && !ns) { nf = 1; keep("it ran no case") }
  else if (ok && !np && !ns) np = 1
  if (!ok && !nf) nf = 1
  if (!ok && !kept) keep(reason)
  p += np; f += nf; s += ns; np = nf = ns = closed = kept = n = is_output = 0
}
/^[0-9]+\/[0-9]+ Testing: / { name = $3; n = 0 }
/^<end of output>/ { is_output = 0 }
/^\[  PASSED  \] [0-9]+ test/ { np += $4; closed = 1 }
/^\[  FAILED  \] [0-9]+ test/ { nf += $4; closed = 1 }
/^\[  SKIPPED \] [0-9]+ test/ { ns += $4 }
/^\[  FAILED  \] / && !/^\[  FAILED  \] [0-9]+ test/ && !closed { keep(substr($0, 14)); n = 0 }
/^\[ RUN      \]/ { n = 0; next }
is_output { last[n++] = $0 }
/^Output:$/ { getline; is_output = 1; n = 0 }
/^Test Passed\./ { close_test(1) }
/^(Test Failed|Test Fail Reason|Test time out|Test timeout|Unable to find executable|Test Not Run|Test Skipped)/ { reason = $0; close_test(0) }
END { printf "%d %d %d\n", p, f, s }
