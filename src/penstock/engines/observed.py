"""An engine around any engine: calls end in time, passing faults are repeated, events tell of it.

A verb is repeated after ``EngineUnavailable`` only where that is safe, for the first try may have
been committed and only its reply lost:

| verb                                   | repeated? why                                          |
|----------------------------------------|--------------------------------------------------------|
| open, migrate                          | yes: they end in the same place; without a time limit  |
| close                                  | no: it is over either way                              |
| now, held, look, queues, leader, cell, | yes: they only read                                    |
| get, find, counts, loads, workers,     |                                                        |
| version                                |                                                        |
| wait, listen, results                  | yes, for the time that is left; they may sleep so long |
| enqueue                                | yes: the same id is the same job; see ``_ours``        |
| join, leave, progress, set_queue,      | yes: the second call changes nothing                   |
| resign                                 |                                                        |
| beat                                   | yes: one beat more shows the same                      |
| exchange, want = 0                     | yes: an outcome repeated by its owner is *done*        |
| exchange, want > 0                     | no: it would claim again; ask ``held`` first (law 3)   |
| cancel                                 | yes: what the lost try changed is then not "changed"   |
| promote, rescue, prune, mend           | yes: they do what is left; what the lost try did is    |
|                                        | not in the numbers                                     |
| lead                                   | yes: it renews the term that the lost try took         |
| retry                                  | no: a job that failed again since would get another go |
| purge                                  | no: twice ``limit`` might go                           |
| set_cell                               | no: after one's own lost write it says "too late"      |
"""

from __future__ import annotations
