//! Random lives under policies, with keys, groups, reasons, clears and schedules.
//!
//! What a policy makes of a job is not told here a second time. Each life is lived twice from the same
//! disk: once to its end, which gives the list of the states that the queue had, one for each command and
//! each tick; and once or more with a crash in it. After the crash the queue must have one of the states
//! of the first life: none older than the last that was acknowledged, and none that came later than the
//! crash. So nothing that was acknowledged is lost, nothing that was deleted or cleared comes back,
//! reasons, keys, deliveries and settings are as they were.
//!
//! A tick does several things that belong not together: several jobs fail, fire, or expire. In the
//! middle of it each job and each setting is as before or as after it.
//!
//! What the first life does is judged by what clients see:
//!
//! | | |
//! |---|---|
//! | keys | a put gives a key that a job has to no second one |
//! | deliveries | each one that a client has got counts, also after a crash; no job is handed out beyond its limit |
//! | refusals | a command that is refused changes nothing |
//! | turns | in a fair tube the group with the fewest reserved jobs comes first (`turns`) |
//! | schedules | three whose firings are counted (`beats`): each fires once for each time, and makes up for what was missed as it says |
//!
//! `BSD_EXTENDED_RUNS` says how many seeds are tried (or `BSD_TEST_SCALE` times as many as usual);
//! `BSD_EXTENDED_SEED` repeats one.

mod beats;
mod lives;
mod turns;
mod world;
