-------------------------------- MODULE Tenure --------------------------------
(* Workers, people and a network that loses, delays, reorders and repeats     *)
(* requests, around one run of one store that decides by Rules.tla.           *)
EXTENDS Rules, TLC

CONSTANTS Workers,
          Kinds,        \* kinds of commit the holders make
          Hows,         \* kinds of end that are asked for
          Posts,        \* what people post: names of KnownItems
          MaxDeletes,   \* how often a terminal run is deleted; it may be created again
          Outages,      \* BOOLEAN: a claimer may have been cut off itself (blame false)
          Unseen,       \* BOOLEAN: a history may end before any change saw it
          ResolveInFlight, \* switch: after a reattach, look whether the commit in flight landed
          OneAtATime,      \* switch: no answer to a commit is heard while a reattach is asked
          MaxGrants, MaxCommits, MaxTime, MaxRestarts, MaxPromotions, MaxBack

VARIABLES run,      \* the record
          store,    \* clock, native history id, history row, floor
          minds,    \* what each worker believes
          sent,     \* every request ever sent: each may be decided never, once or again, at any time
          replica,  \* what an asynchronous replica has: {} or {snapshot}
          time,     \* elapsed time, which no clock step changes
          made,     \* how many of each thing the model has used up
          seen      \* the witness: sees everything, is read by the properties only

vars == <<run, store, minds, sent, replica, time, made, seen>>

KnownItems ==
  { [name |-> "yes",    id |-> "ask",    type |-> "decision",   of |-> "ask"],
    [name |-> "no",     id |-> "ask",    type |-> "decision",   of |-> "ask"],
    [name |-> "revoke", id |-> "revoke", type |-> "revocation", of |-> "ask"],
    [name |-> "signal", id |-> "signal", type |-> "signal",     of |-> ""] }
Items    == { i \in KnownItems : i.name \in Posts }
Nobody   == [token |-> 0, nonce |-> 0, epoch |-> 0]
Nothing  == [change |-> "none"]
Idle     == [grant |-> Nobody, seq |-> 0, head |-> << >>, read |-> 0, items |-> {},
             flight |-> Nothing, ask |-> Nothing, deadline |-> 0]
Symmetry == Permutations(Workers)
Signals  == { i.id : i \in { j \in Items : j.type = "signal" } }
Requests == { i.id : i \in { j \in Items : j.type = "decision" } }
Holds(w) == minds[w].grant # Nobody

Init ==
  /\ store = [now |-> 0, micros |-> 0, native |-> 1, promoted |-> FALSE, floor |-> 0,
              history |-> [epoch |-> 1, since |-> 0, promoted |-> FALSE]]
  /\ run = applied(Absent, store, [change |-> "create"])
  /\ minds = [w \in Workers |-> Idle]
  /\ sent = { [change |-> "post", by |-> "people", item |-> i] : i \in Items }
            \cup (IF "cancel" \in Hows
                  THEN {[change |-> "end", by |-> "people", how |-> "cancel", token |-> 0, nonce |-> 0]}
                  ELSE {})
            \cup (IF MaxDeletes > 0 THEN {[change |-> "delete", by |-> "people"],
                                   [change |-> "create", by |-> "people"]} ELSE {})
  /\ replica = {}
  /\ time = 0
  /\ made = [grants |-> 0, commits |-> 0, restarts |-> 0, promotions |-> 0, back |-> 0, deletes |-> 0]
  /\ seen = [top |-> 0, holder |-> "none", over |-> {}, nonces |-> {}, acked |-> {}, refused |-> {},
             used |-> {}, deaths |-> 0, open |-> FALSE, renewed |-> 0, wrong |-> {}]

----------------------------------------------------------------------------
(* What workers and people send. A worker that sleeps is one that takes no    *)
(* step: nothing here looks at a deadline, so every one may be a zombie.      *)

(* A worker that died is one that sends no more, or that asks for a new grant *)
(* and has forgotten everything.                                              *)
AskClaim(w) ==
  /\ made.grants < MaxGrants
  /\ run.status \in {"queued", "running", "suspended"} /\ free(run, store)
  /\ \E blame \in (IF Outages THEN BOOLEAN ELSE {TRUE}) :
       LET c == [change |-> "claim", by |-> w, seen |-> run.token, blame |-> blame,
                 nonce |-> IF Nonce THEN made.grants + 1 ELSE 1]
       IN /\ sent' = sent \cup {c}
          /\ minds' = [minds EXCEPT ![w] = [Idle EXCEPT !.ask = c]]
  /\ made' = [made EXCEPT !.grants = @ + 1]
  /\ UNCHANGED <<run, store, replica, time, seen>>

(* The bytes of a commit. The digest covers everything before it, the content *)
(* (its number) and the token it was made under.                              *)
Commitment(w, m, kind, id, items) ==
  [change |-> "commit", by |-> w, grant |-> m.grant, seq |-> m.seq + 1, prev |-> m.head, kind |-> kind,
   digest |-> Append(m.head, <<id, m.grant.token>>), read |-> m.read,
   consumes |-> IF kind = "consume" THEN items ELSE {},
   opens |-> IF kind = "ask" THEN Requests ELSE {},
   wants |-> IF kind \in {"suspend", "sleep"} THEN Requests \cup Signals ELSE {}]

Content(c) == c.digest[Len(c.digest)][1]

MakeCommit(w) ==
  /\ Holds(w) /\ minds[w].flight = Nothing /\ minds[w].ask = Nothing
  /\ made.commits < MaxCommits
  /\ \E kind \in Kinds :
       /\ kind \in {"suspend", "sleep"} => minds[w].items = {}
       /\ kind = "consume" => minds[w].items # {}
       /\ LET c == Commitment(w, minds[w], kind, made.commits + 1, minds[w].items)
          IN /\ sent' = sent \cup {c}
             /\ minds' = [minds EXCEPT ![w].flight = c]
  /\ made' = [made EXCEPT !.commits = @ + 1]
  /\ UNCHANGED <<run, store, replica, time, seen>>

ReadInbox(w) ==
  /\ Holds(w) /\ minds[w].flight = Nothing /\ minds[w].read # run.inbox_seq
  /\ minds' = [minds EXCEPT ![w].read = run.inbox_seq, ![w].items = run.inbox]
  /\ UNCHANGED <<run, store, sent, replica, time, made, seen>>

AskReattach(w) ==
  /\ Holds(w) /\ minds[w].ask = Nothing /\ made.grants < MaxGrants
  /\ minds[w].grant.epoch # store.native
  /\ LET m == minds[w]
         c == [change |-> "reattach", by |-> w, grant |-> m.grant, nonce |-> made.grants + 1,
               seq |-> m.seq, head |-> m.head,
               flying |-> IF m.flight = Nothing THEN << >> ELSE m.flight.digest]
     IN /\ sent' = sent \cup {c}
        /\ minds' = [minds EXCEPT ![w].ask = c]
  /\ made' = [made EXCEPT !.grants = @ + 1]
  /\ UNCHANGED <<run, store, replica, time, seen>>

(* Who has the grant ends it: a supervisor for a child that died (forfeit), a *)
(* worker for itself (yield, quarantine).                                     *)
GiveUp(w) ==
  /\ Holds(w)
  /\ \E how \in Hows \cap {"forfeit", "yield", "quarantine"} :
       sent' = sent \cup {[change |-> "end", by |-> "people", how |-> how,
                           token |-> minds[w].grant.token, nonce |-> minds[w].grant.nonce]}
  /\ minds' = [minds EXCEPT ![w] = Idle]
  /\ UNCHANGED <<run, store, replica, time, made, seen>>

Operate ==
  /\ \E how \in Hows \cap {"evict", "release"} :
       /\ run.status = IF how = "evict" THEN "running" ELSE "quarantined"
       /\ sent' = sent \cup {[change |-> "end", by |-> "people", how |-> how,
                              token |-> run.token, nonce |-> 0]}
  /\ sent' # sent
  /\ UNCHANGED <<run, store, minds, replica, time, made, seen>>

----------------------------------------------------------------------------
(* What a worker makes of an answer it hears: the run `r` after, the store.   *)

Trust(r, s, g) == time + left(r, s, g.token, g.nonce)

TakeHold(m, r, s) ==
  LET g == [token |-> r.token, nonce |-> r.nonce, epoch |-> r.epoch]
  IN [Idle EXCEPT !.grant = g, !.seq = r.seq, !.head = r.head, !.read = r.inbox_seq,
                  !.items = r.inbox, !.deadline = Trust(r, s, g)]

(* After a reattach the holder goes on from what it knew; its commit in flight *)
(* has landed, or is made again under the new grant.                          *)
Reattached(w, m, r, s) ==
  LET g      == [token |-> r.token, nonce |-> r.nonce, epoch |-> r.epoch]
      landed == m.flight # Nothing /\ r.seq = m.flight.seq /\ r.head = m.flight.digest
      base   == [m EXCEPT !.grant = g, !.ask = Nothing, !.deadline = Trust(r, s, g),
                          !.seq = IF landed THEN r.seq ELSE @,
                          !.head = IF landed THEN r.head ELSE @]
  IN IF m.flight = Nothing THEN base
     ELSE IF landed /\ ResolveInFlight
          THEN IF ends(m.flight.kind) THEN Idle ELSE [base EXCEPT !.flight = Nothing]
          ELSE [base EXCEPT !.flight =
                  Commitment(w, base, m.flight.kind, Content(m.flight), m.flight.consumes)]

AfterCommit(m, c, a, r, s) ==
  CASE a \in {"landed", "already"} ->
         IF ends(c.kind) THEN Idle
         ELSE [m EXCEPT !.flight = Nothing, !.seq = c.seq, !.head = c.digest,
                        !.items = @ \ c.consumes, !.deadline = Trust(r, s, m.grant)]
    [] a = "history" -> m
    [] a = "refused" ->      \* by the inbox alone: read and go on; else the lease is lost
         IF holds(r, c.grant) /\ r.lease > s.now /\ r.seq = m.seq /\ r.head = m.head
         THEN [m EXCEPT !.flight = Nothing] ELSE Idle

Hears(w, c, a, r, s) ==
  LET m == minds[w]
  IN CASE c.change = "claim"    -> CASE a = "history" -> m
                                     [] a = "refused" \/ r.status # "running" -> Idle
                                     [] OTHER -> TakeHold(m, r, s)
       [] c.change = "reattach" -> IF a = "refused" THEN Idle ELSE Reattached(w, m, r, s)
       [] c.change = "renew"    -> CASE a = "landed"  -> [m EXCEPT !.deadline = Trust(r, s, m.grant)]
                                     [] a = "refused" -> Idle
                                     [] OTHER         -> m
       [] c.change = "commit"   -> AfterCommit(m, c, a, r, s)

(* While it asks to reattach, a worker hears nothing about its commit in flight. *)
Heeds(w)  == OneAtATime => minds[w].ask = Nothing
Waits(c)  == /\ c.by \in Workers
             /\ \/ c.change = "renew" \/ c = minds[c.by].ask
                \/ c = minds[c.by].flight /\ Heeds(c.by)

----------------------------------------------------------------------------
(* The witness. `wrong` collects what no run may ever show.                   *)

Logged(r) == { r.log[i].digest : i \in 1..Len(r.log) }
Applied(r) == { r.log[i].digest[Len(r.log[i].digest)][1] : i \in 1..Len(r.log) }

WrongGrant(c, r, s, after) ==
  (IF after.token <= seen.top THEN {"token"} ELSE {})
  \cup (IF c.change = "claim" /\ r.status = "running" /\ r.lease > s.now THEN {"two grants"} ELSE {})
  \cup (IF after.nonce \in seen.nonces THEN {"nonce"} ELSE {})

WrongCommit(c, r, s) ==
  (IF c.by # seen.holder \/ c.grant.token # seen.top THEN {"stale"} ELSE {})
  \cup (IF r.lease <= s.now THEN {"dead"} ELSE {})
  \cup (IF Content(c) \in Applied(r) THEN {"twice"} ELSE {})
  \cup (IF c.consumes \cap seen.used # {} THEN {"consumed twice"} ELSE {})
  \cup (IF \E i \in r.inbox \ c.consumes : i.type = "revocation" /\ i.of \in Ids(c.consumes)
        THEN {"revoked"} ELSE {})

Clocked(t) == IF MaxBack > 0 THEN t ELSE 0   \* watched only where it is asked for: fewer states

SawGrant(c, r, s, after) ==
  LET died   == seen.open /\ c.change = "claim" /\ c.blame /\ r.epoch = s.native
      deaths == seen.deaths + IF died THEN 1 ELSE 0
      given  == after.status = "running"
  IN [seen EXCEPT
        !.deaths = deaths, !.open = given,
        !.top = IF given THEN after.token ELSE @,
        !.holder = IF given THEN c.by ELSE "none",
        !.nonces = IF given THEN @ \cup {after.nonce} ELSE @,
        !.renewed = Clocked(time),
        !.wrong = @ \cup (IF given THEN WrongGrant(c, r, s, after) ELSE {})
                    \cup (IF given /\ deaths >= MaxCrashes THEN {"start past the limit"} ELSE {})]

SawCommit(c, r, s) ==
  [seen EXCEPT !.wrong = @ \cup WrongCommit(c, r, s),
               !.used = @ \cup c.consumes,
               !.deaths = IF c.kind = "record" THEN @ ELSE 0,
               !.open = IF ends(c.kind) THEN FALSE ELSE @,
               !.renewed = Clocked(time),
               !.holder = IF ends(c.kind) THEN "none" ELSE @]

SawEnd(c, r) ==
  [seen EXCEPT !.over = @ \cup {r.token}, !.holder = "none",
               !.open = (c.how = "forfeit"),
               !.deaths = IF c.how = "release" THEN 0 ELSE @,
               !.wrong = @ \cup IF c.how = "evict" /\ r.token # c.token THEN {"evicted another"} ELSE {}]

Saw(c, r, s, after) ==
  LET base == CASE c.change \in {"claim", "reattach"} -> SawGrant(c, r, s, after)
                [] c.change = "commit" -> SawCommit(c, r, s)
                [] c.change = "end"    -> SawEnd(c, r)
                [] c.change = "renew"  -> [seen EXCEPT !.renewed = Clocked(time)]
                [] c.change = "create" -> [seen EXCEPT !.deaths = 0, !.open = FALSE, !.used = {}]
                [] c.change = "delete" -> [seen EXCEPT !.acked = {}, !.refused = {}]
                [] OTHER               -> seen
  IN IF r.status \in Terminal /\ after.status \notin {r.status, "absent"}
     THEN [base EXCEPT !.wrong = @ \cup {"terminal"}] ELSE base

Told(base, c, a) ==
  IF c.change # "commit" THEN base
  ELSE CASE a \in {"landed", "already"} -> [base EXCEPT !.acked = @ \cup {c.digest}]
         [] a = "refused"               -> [base EXCEPT !.refused = @ \cup {c.digest}]
         [] OTHER                       -> base

----------------------------------------------------------------------------
(* The store decides one request, and the answer is heard or lost. A late     *)
(* answer is one heard by a worker that then slept, so it needs no step.      *)

Renewal(w) == [change |-> "renew", by |-> w, grant |-> minds[w].grant]

Asked(change) ==
  CASE change = "renew"  -> { Renewal(w) : w \in { v \in Workers : Holds(v) } }
    [] change = "repair" -> {[change |-> "repair", by |-> "sweep"]}
    [] OTHER             -> { c \in sent : c.change = change }

Awaited(w) == ((IF Heeds(w) THEN {minds[w].ask, minds[w].flight} ELSE {minds[w].ask}) \ {Nothing})
              \cup (IF Holds(w) THEN {Renewal(w)} ELSE {})

Hearing(c, a, r, s) ==
  /\ minds' = [minds EXCEPT ![c.by] = Hears(c.by, c, a, r, s)]
  \* A commit made again after a reattach goes out at once: it is the worker's next request.
  /\ sent' = IF c.change = "reattach" /\ minds'[c.by].flight # Nothing
             THEN sent \cup {minds'[c.by].flight} ELSE sent

(* TLC says once that a change landed, so that nobody trusts a model in which *)
(* it never does. This is no part of the state.                               *)
Said == [create |-> 1, claim |-> 2, renew |-> 3, commit |-> 4, reattach |-> 5, post |-> 6, delete |-> 7,
         repair |-> 8, cancel |-> 9, evict |-> 10, forfeit |-> 11, yield |-> 12, quarantine |-> 13, release |-> 14]
ASSUME \A name \in DOMAIN Said : TLCSet(Said[name], FALSE)
Say(name) == IF TLCGet(Said[name]) THEN TRUE ELSE PrintT(<<"landed", name>>) /\ TLCSet(Said[name], TRUE)

Lands(change, how) ==
  LET s == noted(store)
  IN \E c \in Asked(change) :
       /\ change = "end" => c.how = how
       /\ verdict(run, s, c) = "landed"
       /\ Say(IF change = "end" THEN how ELSE change)
       /\ run' = applied(run, s, c)
       /\ store' = floored(run, s, c)
       /\ LET base == Saw(c, run, s, run')
          IN \/ minds' = minds /\ sent' = sent /\ seen' = base
             \/ Waits(c) /\ Hearing(c, "landed", run', store') /\ seen' = Told(base, c, "landed")
       /\ UNCHANGED <<replica, time>>

(* A refusal or a repeated request leaves no trace in the run.                *)
Answers ==
  LET s == noted(store)
  IN \E w \in Workers : \E c \in Awaited(w) :
       LET a == verdict(run, s, c)
       IN /\ a # "landed"
          /\ store' = s
          /\ Hearing(c, a, run, s)
          /\ seen' = Told(seen, c, a)
          /\ UNCHANGED <<run, replica, time, made>>

Create   == Lands("create", "")   /\ UNCHANGED made
Claim    == Lands("claim", "")    /\ UNCHANGED made
Renew    == Lands("renew", "")    /\ UNCHANGED made
Commit   == Lands("commit", "")   /\ UNCHANGED made
Reattach == Lands("reattach", "") /\ UNCHANGED made
Post     == Lands("post", "")     /\ UNCHANGED made
End(how) == Lands("end", how)     /\ UNCHANGED made
Repair   == Lands("repair", "")   /\ UNCHANGED made
Delete   == /\ made.deletes < MaxDeletes
            /\ Lands("delete", "") /\ made' = [made EXCEPT !.deletes = @ + 1]

----------------------------------------------------------------------------
(* Time and history.                                                          *)

Stretched == RepairCuts /\ run.lease - store.now > Ttl

Tick ==        \* a repair pass runs more often than a lease lasts
  /\ time < MaxTime /\ ~Stretched
  /\ time' = time + 1
  /\ store' = [store EXCEPT !.now = @ + 1]
  /\ UNCHANGED <<run, minds, sent, replica, made, seen>>

ClockBack ==   \* one step back, by MaxBack ticks
  /\ made.back < MaxBack
  /\ store' = [store EXCEPT !.now = @ - MaxBack]
  /\ made' = [made EXCEPT !.back = MaxBack]
  /\ seen' = [seen EXCEPT !.renewed = time]     \* the bound counts from the clock's step
  /\ UNCHANGED <<run, minds, sent, replica, time>>

Restart ==     \* another history, nothing lost
  /\ made.restarts < MaxRestarts
  /\ Unseen \/ store.history.epoch = store.native
  /\ store' = [store EXCEPT !.native = @ + 1, !.promoted = FALSE, !.micros = @ + Micro \div 2]
  /\ made' = [made EXCEPT !.restarts = @ + 1]
  /\ UNCHANGED <<run, minds, sent, replica, time, seen>>

Notice ==      \* somebody's change is refused, and writes the history row all the same
  /\ store # noted(store) /\ store' = noted(store)
  /\ UNCHANGED <<run, minds, sent, replica, time, made, seen>>

Replicate ==   \* one rollback needs one point to roll back to
  /\ made.promotions < MaxPromotions /\ replica = {}
  /\ replica' = {[run |-> run, floor |-> store.floor, history |-> store.history]}
  /\ UNCHANGED <<run, store, minds, sent, time, made, seen>>

Promote ==     \* the replica takes over, some microseconds later, without what it never got
  /\ made.promotions < MaxPromotions
  /\ \E old \in replica :
       /\ run' = old.run
       /\ store' = [store EXCEPT !.native = @ + 1, !.promoted = TRUE, !.micros = @ + Micro \div 2,
                                 !.floor = old.floor, !.history = old.history]
       /\ seen' = [seen EXCEPT !.acked = @ \cap Logged(old.run)]
  /\ replica' = {}
  /\ made' = [made EXCEPT !.promotions = @ + 1]
  /\ UNCHANGED <<minds, sent, time>>

Next ==
  \/ Create \/ Claim \/ Renew \/ Commit \/ Reattach \/ Post \/ Delete \/ Repair
  \/ \E how \in Hows : End(how)
  \/ Answers
  \/ \E w \in Workers : \/ AskClaim(w) \/ MakeCommit(w) \/ ReadInbox(w)
                        \/ AskReattach(w) \/ GiveUp(w)
  \/ Operate \/ Tick \/ ClockBack \/ Restart \/ Notice \/ Replicate \/ Promote

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
(* The properties.                                                            *)

NoStaleWrite       == "stale" \notin seen.wrong
NoDeadWrite        == "dead" \notin seen.wrong
OneGrant           == "two grants" \notin seen.wrong
TokensRise         == "token" \notin seen.wrong
NonceNamesOneGrant == "nonce" \notin seen.wrong
NoDoubleApply      == "twice" \notin seen.wrong
TerminalIsFinal    == "terminal" \notin seen.wrong
EndsWhatItSaw      == "evicted another" \notin seen.wrong
ConsumedOnce       == "consumed twice" \notin seen.wrong
RevocationRead     == "revoked" \notin seen.wrong
NoStartPastLimit   == "start past the limit" \notin seen.wrong

NoGap ==
  /\ run.seq = Len(run.log)
  /\ \A i \in 1..Len(run.log) :
       /\ run.log[i].seq = i /\ Len(run.log[i].digest) = i
       /\ i > 1 => SubSeq(run.log[i].digest, 1, i - 1) = run.log[i - 1].digest

AckedSurvives      == seen.acked \subseteq Logged(run)
RefusedNeverLands  == seen.refused \cap Logged(run) = {}

(* Who may act: a worker whose deadline is ahead, that nobody ended, and that *)
(* is not just waiting for the answer to its last commit.                     *)
Trusts(w) == /\ Holds(w) /\ time < minds[w].deadline
             /\ minds[w].grant.token \notin seen.over
             /\ minds[w].flight = Nothing \/ ~ends(minds[w].flight.kind)
OneHolder == \A v, w \in Workers : Trusts(v) /\ Trusts(w) => v = w

(* A holder's record is what it was told, or what its commit in flight made.  *)
OnlyWhoFitsContinues ==
  \A w \in Workers :
    LET m == minds[w]
    IN  Holds(w) /\ m.grant = [token |-> run.token, nonce |-> run.nonce, epoch |-> run.epoch]
          /\ run.epoch = store.native
        => \/ <<run.seq, run.head>> = <<m.seq, m.head>>
           \/ m.flight # Nothing /\ <<run.seq, run.head>> = <<m.flight.seq, m.flight.digest>>

NotSleptOver == run.status = "suspended" => Ids(run.inbox) \cap run.wants = {}

FirstDecisionWins ==
  \A i, j \in run.inbox \cup run.consumed : i.id = j.id => i = j

ForfeitCounts           == seen.deaths <= run.crashes
OutageQuarantinesNobody == run.crashes <= seen.deaths

(* A lease nobody renewed is over after one ttl and one repair pass.          *)
TakeoverBound == run.lease > store.now => time <= seen.renewed + Ttl + 1
=============================================================================
