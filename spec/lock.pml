/* Clients that use one lock, the network, and the clock. The server is in scripts.pml.
 *
 * No step has to be taken before the next tick: this is how paused processes and slow networks are
 * modelled. Requests, replies and grants can be lost, one request at a time can arrive late, clients
 * can die, and the server can lose its data. A lost reply is also how a client appears that is
 * cancelled, or whose time is over. A reply arrives in the step in which the script runs. A later
 * arrival would shorten what the client believes, and otherwise equals a paused client or a lost reply.
 *
 * With PROMPT, live clients act before the next tick. Then a free lock must be acquired in time.
 */
#define M 0
#define QUEUE_LOCK LEASE
#define WEIGHT(x) ((CAPACITY > 1 && (x) == 0) -> 2 : 1)
#define NOTE_GRANT(x) skip
#include "scripts.pml"

mtype = { none, ask, last_ask, free, renewal, beat };
mtype asks[N];                  /* the request of a client that is under way */
byte age[N];                    /* how long ago it was sent */
mtype late = none;              /* a request whose sender does not wait for the reply any more */
byte late_from, late_age;

mtype = { idle, asking, waiting, holding, freeing, dead };
mtype state[N];
byte until[N];                  /* how long the client counts on the lock, by its own clock */
#define BELIEVES(p) (state[p] == holding && until[p] > 0)

byte untold;                    /* after a loss of data: how long nothing is promised */
byte told_fence, told_to;       /* FENCES: the last one that a client learned, and which client */
byte lost, deaths, idle_ticks;  /* PROMPT */
bit renewed[N], beaten[N];
hidden mtype what;
hidden byte sum, begun, sent_ago;

#define MAY_SERVE (!FENCES || fence < FENCES)
#define MAY_LOSE (PROMPT -> lost < PROMPT : !CALM)
#define MAY_DIE (!PROMPT || deaths < DEATHS)
#define IS_BUSY(p) (asks[p] != none || state[p] == asking || state[p] == freeing || \
  (state[p] == waiting && (inbox[p] || !beaten[p])) || (state[p] == holding && until[p] <= 1))
#define MAY_TICK(p) (PROMPT -> state[p] == dead || !IS_BUSY(p) : !TRACE || asks[p] == none)

inline send(p, request) { asks[p] = request; age[p] = 0 }
inline no_reply(p) { asks[p] = none; age[p] = 0 }  /* the client learns nothing of its request */
inline note_loss() { lost = (PROMPT -> lost + 1 : 0) }
inline forget_grant(p) { inbox[p] = 0; since[p] = 0 }

inline believe(p, ticks) {
  state[p] = holding; until[p] = ticks; sum = 0;
  for (each : 0 .. N - 1) { sum = sum + (BELIEVES(each) -> WEIGHT(each) : 0) }
  assert(untold > 0 || sum <= CAPACITY)  /* PROPERTY exclusion */
}
inline learn_fence(p, its) {
  assert(!FENCES || its > told_fence || (its == told_fence && told_to == p));  /* PROPERTY fence */
  told_fence = its; told_to = (FENCES -> p : 0)
}
inline serve(p, request, sent) {
  printf("@%e %d 0\n", request, p);
  advances = NO; sent_ago = (sent < HALF -> sent : HALF);
  if
  :: request == ask || request == last_ask -> acquire(p, (request == ask), sent_ago)
  :: request == free -> release(p)
  :: request == renewal -> renew(p)
  :: request == beat -> heartbeat(p, sent_ago)
  fi;
  advance((request == ask));
  reply = (request == ask || request == last_ask -> held[p] > 0 : reply);
  begun = reply;
  tell();
  for (each : 0 .. N - 1) { assert(untold > 0 || !BELIEVES(each) || held[each] >= until[each]) }  /* PROPERTY hold */
}

inline ask_again(p) { state[p] = asking; send(p, ask) }
inline give_up(p) { state[p] = freeing; send(p, free) }

proctype Client(byte p) {
  do
  /* It begins when no trace of the last use of its token is left */
  :: d_step { state[p] == idle -> begun = 0; find(p);
      if
      :: held[p] == 0 && place == waiters && !inbox[p] && (late == none || late_from != p) -> ask_again(p)
      :: else
      fi }
  :: d_step { asks[p] == ask && state[p] == asking && age[p] == 0 && RARELY -> asks[p] = last_ask }  /* does not wait */
  :: d_step { asks[p] != none && MAY_SERVE ->  /* the script runs, and the reply arrives */
      what = asks[p]; serve(p, what, age[p]); asks[p] = none;
      if
      :: (what == ask || what == last_ask) && begun && age[p] < LEASE ->  /* @ ../engine/protocol.py: return Acquired(abs(reply), sent_at + request.lease, took_over=took_over) */
        learn_fence(p, fence_of[p]); believe(p, LEASE - age[p])
      :: what == ask && begun && age[p] >= LEASE -> send(p, ask)  /* @ ../engine/protocol.py: if acquired and clock.now() < acquired.deadline:  # else the reply came too late */
      :: what == last_ask && begun && age[p] >= LEASE -> give_up(p)
      :: what == ask && !begun -> state[p] = waiting
      :: what == last_ask && !begun -> state[p] = idle
      :: what == renewal && begun -> believe(p, (LEASE > age[p] -> LEASE - age[p] : 0))
      :: what == renewal && !begun -> until[p] = 0; give_up(p)
      :: what == beat && !begun -> ask_again(p)
      :: what == beat && begun
      :: what == free -> state[p] = idle
      fi;
      age[p] = (asks[p] == none -> 0 : age[p]) }
  :: d_step { asks[p] != none && RARELY && MAY_LOSE && MAY_SERVE ->  /* the reply is lost */
      what = asks[p]; serve(p, what, age[p]); no_reply(p); note_loss() }
  :: d_step { asks[p] != none && RARELY && MAY_LOSE -> no_reply(p); note_loss() }  /* the request is lost */
  :: d_step { asks[p] != none && RARELY && !PROMPT && !CALM && late == none ->  /* the request will be late */
      late = asks[p]; late_from = p; late_age = (age[p] < HALF -> age[p] : HALF); no_reply(p) }
  :: d_step { late != none && late_from == p && MAY_SERVE -> what = late; late = none; serve(p, what, late_age); late_age = 0; late_from = 0 }
  :: d_step { late != none && late_from == p -> late = none; late_age = 0; late_from = 0 }
  :: d_step { state[p] == asking && asks[p] == none -> send(p, ask) }  /* after an error */
  :: d_step { (((state[p] == asking || state[p] == waiting) && RARELY) || state[p] == freeing) && asks[p] == none -> give_up(p) }
  :: d_step { state[p] == freeing && asks[p] == none && !PROMPT -> state[p] = idle }  /* the server is away */
  /* It waits */
  :: d_step { state[p] == waiting && asks[p] == none && inbox[p] -> inbox[p] = 0;
      if                        /* @ ../engine/protocol.py: if not 0 <= clock.now() - grant.since < request.grant_ttl / 2: */
      :: 2 * since[p] < GRANT -> learn_fence(p, fence_in[p]); believe(p, GRANT - since[p])
      :: else -> ask_again(p)
      fi;
      since[p] = 0 }
  :: d_step { inbox[p] && ((RARELY && !PROMPT) || state[p] == idle) -> forget_grant(p) }  /* it is lost, or too late */
  :: d_step { state[p] == waiting && asks[p] == none && !beaten[p] -> send(p, beat); beaten[p] = (PROMPT > 0) }
  :: d_step { state[p] == waiting && asks[p] == none && (!PROMPT || TRACE) && (!TRACE || beaten[p]) -> ask_again(p) }
  /* It holds the lock */
  :: d_step { BELIEVES(p) && asks[p] == none && !renewed[p] -> send(p, renewal); renewed[p] = (PROMPT > 0) }
  :: d_step { state[p] == holding && asks[p] == none -> until[p] = 0; renewed[p] = 0; give_up(p) }
  /* It dies. Without PROMPT, another one comes in its place */
  :: d_step { state[p] != idle && state[p] != dead && asks[p] == none && RARELY && MAY_DIE ->
      until[p] = 0; renewed[p] = 0; deaths = (PROMPT -> deaths + 1 : 0); state[p] = (PROMPT -> dead : idle) }
  od
}

proctype Clock() {
  do
  :: d_step { MAY_TICK(0) && MAY_TICK(1) && (N < 3 || MAY_TICK(N - 1)) ->
      begun = 0; sum = 0; what = none;
      for (each : 0 .. N - 1) {
        begun = begun || state[each] == asking || state[each] == waiting;
        sum = sum || BELIEVES(each) || (state[each] == dead && held[each] > 0 && !by_grant[each])
      }
      idle_ticks = (PROMPT && begun && !sum -> idle_ticks + 1 : 0);
      assert(TRACE || idle_ticks <= (1 + DEATHS) * (GRANT + 1));  /* PROPERTY progress */
      for (each : 0 .. N - 1) {
        LESS(until[each]); beaten[each] = 0;
        if :: asks[each] != none && asks[each] != free -> OLDER(age[each], (asks[each] == beat -> HALF : LEASE)) :: else fi
      }
      if :: late == ask || late == beat -> OLDER(late_age, HALF) :: else fi;
      LESS(untold);
      server_ticks(); printf("@tick 0 0\n"); tell() }
  :: d_step { WIPES -> untold = LEASE;
      for (each : 0 .. TOKENS - 1) { held[each] = 0; queue[each] = 0; ahead[each] = 0; by_grant[each] = 0 }
      for (each : 0 .. N) { alive[each] = 0; epoch[each] = 0 }
      waiters = 0 }
  od
}

init {
  d_step {
    for (each : 0 .. N - 1) { asks[each] = none; state[each] = idle }
    alive[N] = (D -> ALIVE : 0);
    for (each : N .. N + D - 1) { queue[waiters] = each; waiters++; ahead[each] = (1 << each) - (1 << N) }
  }
  atomic { for (first : 0 .. N - 1) { run Client(first) } run Clock() }
}
