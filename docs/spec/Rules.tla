-------------------------------- MODULE Rules --------------------------------
(* The change table: what a store decides in one atomic step, for one run.    *)
(* Nothing here knows workers, messages or how a history is lost; Tenure.tla  *)
(* does. Names are those of src/tenure/core/rules.py.                         *)
(*   r  the run as stored      s  the store: clock, history, floor            *)
(*   c  the change asked for                                                  *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS Ttl,          \* length of every lease, in ticks of the store's clock
          MaxCrashes,   \* the claim that would make this many quarantines
          Micro         \* tokens per tick: the clock inside tokens is finer than a lease

(* One switch per defence: TRUE in every check that must hold. Each is turned *)
(* off alone in a check that must fail (checks.toml).                         *)
CONSTANTS Fence,               \* a write names token, nonce and epoch, and they are compared
          Live,                \* an expired lease is dead even if nobody took over
          Free,                \* a claim waits until the lease is free
          Sequence,            \* a commit names the commit before it; its key is (seq, digest)
          DigestInKey,         \* the same seq with another digest is not the same request
          AlreadyFirst,        \* `already` is judged before the grant
          Nonce,               \* each claim has a nonce of its own
          ClaimSeesToken,      \* a claim names the token as it was found
          EndSeesToken,        \* an eviction names the token it means
          Table,               \* a status changes only as NEXT says
          Floor,               \* deletion leaves the highest token behind
          ClockInToken,        \* token = max(token + 1, store time)
          InboxGuard,          \* suspending or consuming needs the whole inbox read
          PostWakes,           \* a wanted item makes a suspended run queued
          FirstDecision,       \* an item id is used once
          KeepItemIds,         \* a consumed item leaves its id behind
          ForfeitStaysRunning, \* a forfeited run stays running, so the next claim counts
          Quarantine,          \* max_crashes stops the next start
          Blame,               \* a claim without blame counts no crash
          EpochCheck,          \* the grant's epoch is compared with the store's own
          Grace,               \* after a promotion strangers wait one ttl
          GraceCarries,        \* a second history change keeps the grace of the first
          ReattachHeadCheck,   \* who reattaches must know the record's (seq, head)
          LeftCapped,          \* an answer never states more than one ttl as left
          RepairCuts           \* a lease stretched by a clock set back is cut

Terminal == {"completed", "failed", "cancelled"}

NEXT == [ absent      |-> {"queued"},
          queued      |-> {"running", "cancelled"},
          running     |-> {"suspended", "completed", "failed", "cancelled", "queued", "quarantined"},
          suspended   |-> {"queued", "running", "cancelled"},
          quarantined |-> {"queued", "cancelled"},
          completed   |-> {}, failed |-> {}, cancelled |-> {} ]

Absent == [ status |-> "absent", token |-> 0, nonce |-> 0, epoch |-> 0, lease |-> 0,
            seq |-> 0, head |-> << >>, log |-> << >>, attempt |-> 0, crashes |-> 0,
            due |-> FALSE, inbox_seq |-> 0, inbox |-> {}, consumed |-> {},
            requests |-> {}, wants |-> {} ]

least(a, b) == IF a < b THEN a ELSE b
Ids(items)  == { i.id : i \in items }

----------------------------------------------------------------------------
(* The words of the table: grant, live, free.                                 *)
holds(r, g) == r.token = g.token /\ r.nonce = g.nonce /\ r.epoch = g.epoch
grant(r, s, g) == Fence => holds(r, g) /\ (EpochCheck => s.native = g.epoch)
live(r, s)  == Live => r.lease > s.now
free(r, s)  == Free => r.status # "running" \/ r.lease <= s.now
later(r, s) == LET next  == r.token + 1
                      clock == s.now * Micro + s.micros
                  IN  IF ClockInToken /\ clock > next THEN clock ELSE next

(* The history row: written by the first change that sees another native id.  *)
(* A promotion still within its grace is not forgotten by the next change.    *)
noted(s) ==
  LET within == s.history.promoted /\ s.now < s.history.since + Ttl
  IN IF s.history.epoch = s.native THEN s
     ELSE [s EXCEPT !.history = [ epoch |-> s.native, since |-> s.now,
                                  promoted |-> s.promoted \/ (GraceCarries /\ within) ]]

(* A stranger may claim a run of an older history after one ttl, or at once   *)
(* when no acknowledged grant can be missing.                                 *)
strangers_may(r, s) == \/ r.epoch = s.native
                       \/ ~Grace
                       \/ ~s.history.promoted
                       \/ s.now >= s.history.since + Ttl

ends(kind) == kind \in {"suspend", "sleep", "settle", "hand_back"}

row_stands(r, c) == \E i \in 1..Len(r.log) :
                       r.log[i].seq = c.seq /\ (DigestInKey => r.log[i].digest = c.digest)

----------------------------------------------------------------------------
granted_already(r, s, nonce) ==
  r.status = "running" /\ r.nonce = nonce /\ r.epoch = s.native /\ r.lease > s.now

(* already: this very request has had its effect. (Whether a forfeit or yield *)
(* did is told by the grant log, which is not here: its repeat is refused,    *)
(* which changes as little.)                                                  *)
already(r, s, c) ==
  CASE c.change = "create"   -> r.status # "absent"
    [] c.change = "claim"    -> granted_already(r, s, c.nonce)
    [] c.change = "renew"    -> FALSE
    [] c.change = "commit"   -> /\ Sequence
                                /\ row_stands(r, c)
                                /\ AlreadyFirst \/ (grant(r, s, c.grant) /\ live(r, s))
    [] c.change = "reattach" -> granted_already(r, s, c.nonce)
    [] c.change = "post"     -> c.item \in r.inbox \cup r.consumed
    [] c.change = "end"      ->
         CASE c.how = "cancel"              -> r.status = "cancelled"
           [] c.how \in {"evict", "release"} -> r.status = "queued"
           [] c.how = "quarantine"          -> r.status = "quarantined"
           [] OTHER                         -> FALSE
    [] c.change = "delete"   -> r.status = "absent"
    [] c.change = "repair"   -> FALSE

(* admits: the table's third column, all in the deciding step.                *)
admits(r, s, c) ==
  CASE c.change = "create" -> r.status = "absent"
    [] c.change = "claim" ->
         /\ "running" \in NEXT[r.status] \/ r.status = "running"
         /\ r.status = "suspended" => r.due
         /\ free(r, s)
         /\ r.nonce # c.nonce
         /\ ClaimSeesToken => r.token = c.seen
         /\ strangers_may(r, s)
    [] c.change = "renew" -> r.status = "running" /\ grant(r, s, c.grant) /\ live(r, s)
    [] c.change = "commit" ->
         /\ r.status = "running" /\ grant(r, s, c.grant) /\ live(r, s)
         /\ Sequence => r.seq = c.seq - 1 /\ r.head = c.prev
         /\ InboxGuard /\ (c.kind \in {"suspend", "sleep"} \/ c.consumes # {})
              => r.inbox_seq = c.read
    [] c.change = "reattach" ->
         /\ r.status = "running" /\ holds(r, c.grant) /\ r.lease > s.now
         /\ ReattachHeadCheck => \/ <<r.seq, r.head>> = <<c.seq, c.head>>
                                 \/ c.flying # << >> /\ <<r.seq, r.head>> = <<c.seq + 1, c.flying>>
    [] c.change = "post" ->
         /\ r.status \in {"queued", "running", "suspended"}
         /\ FirstDecision => c.item.id \notin Ids(r.inbox \cup r.consumed)
         /\ c.item.type = "decision"   => c.item.id \in r.requests
         /\ c.item.type = "revocation" => c.item.of \in r.requests
    [] c.change = "end" ->
         CASE c.how = "cancel"  -> IF Table THEN "cancelled" \in NEXT[r.status]
                                   ELSE r.status \notin {"absent", "cancelled"}
           [] c.how = "evict"   -> r.status = "running" /\ (EndSeesToken => r.token = c.token)
           [] c.how = "release" -> r.status = "quarantined" /\ r.token = c.token
           [] OTHER             -> r.status = "running" /\ r.token = c.token /\ r.nonce = c.nonce
    [] c.change = "delete" -> r.status \in Terminal
    [] c.change = "repair" -> RepairCuts /\ r.lease - s.now > Ttl

----------------------------------------------------------------------------
(* applied: the run after, the table's fourth column.                         *)
claimed(r, s, c) ==
  LET took    == r.status = "running"
      crashes == r.crashes + IF took /\ (Blame => c.blame /\ r.epoch = s.native) THEN 1 ELSE 0
      granted == [r EXCEPT !.status = "running", !.token = later(r, s), !.nonce = c.nonce,
                           !.epoch = s.native, !.lease = s.now + Ttl, !.crashes = crashes,
                           !.attempt = @ + IF took THEN 1 ELSE 0, !.due = FALSE]
  IN  IF Quarantine /\ crashes > r.crashes /\ crashes >= MaxCrashes
      THEN [granted EXCEPT !.status = "quarantined", !.nonce = 0, !.lease = least(r.lease, s.now)]
      ELSE granted

committed(r, s, c) ==
  LET over == ends(c.kind)
  IN [r EXCEPT
        !.log = Append(@, [seq |-> c.seq, digest |-> c.digest]),
        !.seq = c.seq, !.head = c.digest,
        !.status = CASE c.kind = "settle"              -> "completed"
                     [] c.kind = "hand_back"           -> "queued"
                     [] c.kind \in {"suspend", "sleep"} -> "suspended"
                     [] OTHER                          -> "running",
        !.crashes = IF c.kind = "record" THEN @ ELSE 0,
        !.due = (c.kind = "sleep"),
        !.lease = IF over THEN least(@, s.now) ELSE s.now + Ttl,
        !.inbox = @ \ c.consumes,
        !.consumed = IF KeepItemIds THEN @ \cup c.consumes ELSE @,
        !.requests = (@ \cup c.opens) \ Ids(c.consumes),
        !.wants = IF c.kind \in {"suspend", "sleep"} THEN c.wants ELSE {}]

posted(r, s, c) ==
  LET kept  == [r EXCEPT !.inbox = @ \cup {c.item}, !.inbox_seq = @ + 1]
      wakes == PostWakes /\ r.status = "suspended" /\ c.item.id \in r.wants
  IN  IF wakes THEN [kept EXCEPT !.status = "queued", !.wants = {}, !.due = FALSE] ELSE kept

ended(r, s, c) ==
  [r EXCEPT !.token = later(r, s), !.nonce = 0, !.lease = least(@, s.now), !.due = FALSE,
            !.wants = {},
            !.crashes = IF c.how = "release" THEN 0 ELSE @,
            !.status = CASE c.how = "cancel"     -> "cancelled"
                         [] c.how = "quarantine" -> "quarantined"
                         [] c.how = "forfeit" /\ ForfeitStaysRunning -> "running"
                         [] OTHER                -> "queued"]

applied(r, s, c) ==
  CASE c.change = "create"   -> [Absent EXCEPT !.status = "queued", !.epoch = s.native,
                                               !.token = IF Floor THEN s.floor ELSE 0,
                                               !.seq = 1, !.head = << <<0, 0>> >>, !.attempt = 1,
                                               !.log = << [seq |-> 1, digest |-> << <<0, 0>> >>] >>]
    [] c.change = "claim"    -> claimed(r, s, c)
    [] c.change = "renew"    -> [r EXCEPT !.lease = s.now + Ttl]
    [] c.change = "commit"   -> committed(r, s, c)
    [] c.change = "reattach" -> [r EXCEPT !.token = later(r, s), !.nonce = c.nonce,
                                          !.epoch = s.native, !.lease = s.now + Ttl]
    [] c.change = "post"     -> posted(r, s, c)
    [] c.change = "end"      -> ended(r, s, c)
    [] c.change = "delete"   -> Absent
    [] c.change = "repair"   -> [r EXCEPT !.lease = s.now + Ttl]

(* The store after a landed change; only deletion touches more than the run.  *)
floored(r, s, c) == IF c.change = "delete" /\ r.token > s.floor
                    THEN [s EXCEPT !.floor = r.token] ELSE s

verdict(r, s, c) ==
  CASE already(r, s, c) -> "already"
    [] ~already(r, s, c) /\ admits(r, s, c) -> "landed"
    [] OTHER ->
         IF \/ c.change \in {"commit", "renew"} /\ holds(r, c.grant) /\ s.native # c.grant.epoch
            \/ c.change = "claim" /\ r.nonce = c.nonce /\ r.lease > s.now /\ s.native # r.epoch
         THEN "history" ELSE "refused"

(* What is left of the grant the request names; 0 if the record no longer has it. *)
left(r, s, token, nonce) ==
  LET rest == r.lease - s.now
  IN  IF r.token # token \/ r.nonce # nonce \/ r.status # "running" \/ rest < 0 THEN 0
      ELSE IF LeftCapped /\ rest > Ttl THEN Ttl ELSE rest
=============================================================================
