//! The clients of a simulated run: a script that covers everything, and seeded chance.

use bsd::random::Random;

use super::alterations::Change;
use super::beyond::Beyond;
use super::driver::{Step, TUBES, WORKERS};

/// The tendencies of a random workload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mood {
    /// The largest body, bytes.
    pub(super) size_max: usize,
    /// Hundredths of the commands that put, and that delete.
    pub(super) put: usize,
    pub(super) delete: usize,
    /// Commands in a turn, at most.
    pub(super) turn: usize,
    /// Whether there are clean stops.
    pub(super) restarts: bool,
}

impl Mood {
    pub(super) fn any(random: &mut Random) -> Mood {
        Mood {
            size_max: [40, 1000, 8 << 10][random.below(3)],
            put: 10 + random.below(30),
            delete: 5 + random.below(30),
            turn: 1 + random.below(12),
            restarts: random.percent(30),
        }
    }
}

/// `count` steps, as chance and the mood have it.
pub(super) fn random_steps(random: &mut Random, mood: Mood, count: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut left = 1;
    for _ in 0..count {
        left -= 1;
        if left == 0 {
            left = 1 + random.below(mood.turn);
            steps.push(if mood.restarts && random.percent(2) {
                Step::Restart
            } else {
                Step::Turn {
                    ms: [0, 0, 1, 30, 120, 700, 2500][random.below(7)],
                }
            });
        }
        steps.push(random_step(random, mood));
    }
    steps
}

fn random_step(random: &mut Random, mood: Mood) -> Step {
    let (nth, worker) = (random.below(1 << 20), random.below(WORKERS));
    let (tube, pri) = (random.below(TUBES.len()), random.below(4) as u32 * 700);
    let delay = [0, 0, 0, 1, 2, 40][random.below(6)];
    if random.percent(mood.put) {
        let size = random.below(mood.size_max);
        return Step::put(tube, [pri, delay, 1 + random.below(4) as u32], size);
    }
    if random.percent(mood.delete) {
        return if random.percent(50) {
            Step::Delete { nth }
        } else {
            Step::DeleteReserved { nth }
        };
    }
    match random.below(32) {
        0..9 => Step::Reserve { worker },
        9..11 => Step::ReserveJob { worker, nth },
        11..15 => Step::Release { nth, pri, delay },
        15 => Step::ReleaseBatch { worker, pri, delay },
        16..21 => Step::Bury { nth, pri },
        21..22 => Step::Touch { nth },
        22..25 => Step::Kick {
            tube,
            bound: 1 + random.below(5) as u32,
        },
        25..28 => Step::KickJob { nth },
        28 => Step::Peek { nth },
        29 => Step::DeleteBatch { nth },
        30 => Step::Pause {
            tube,
            seconds: random.below(4) as u32,
        },
        _ => Step::Disconnect { worker },
    }
}

/// Everything that a log goes through, in few operations: the first start, puts of all sizes, every
/// command, rotation, compaction of every kind, the idle marker, clean stops.
pub(super) fn tour() -> Vec<Step> {
    let put = |tube, delay, size| Step::put(tube, [5, delay, 2], size);
    let turn = |ms| Step::Turn { ms };
    let mut steps = vec![
        put(0, 0, 0),
        put(0, 0, 100),
        turn(0),
        put(1, 3, 700),
        Step::Reserve { worker: 0 },
        Step::Bury { nth: 0, pri: 7 },
        turn(150),
        Step::Reserve { worker: 1 },
        Step::Release {
            nth: 0,
            pri: 9,
            delay: 2,
        },
        Step::Pause {
            tube: 2,
            seconds: 30,
        },
        turn(150),
    ];
    let beyond = Step::Beyond;
    steps.extend([
        beyond(Beyond::Put {
            tube: 0,
            delay: 0,
            size: 90,
            list: 1,
        }),
        beyond(Beyond::Attribute { nth: 0, list: 4 }),
        beyond(Beyond::Set { name: 0, size: 40 }),
        turn(0),
    ]);
    let alter = |nth, change| Step::Alter { nth, change };
    let to = |tube| Change::Move { tube, kick: false };
    // Jobs that stay, among many that go: segments fill, die, and are rewritten.
    for round in 0..7 {
        for nth in 0..7 {
            steps.extend([put(nth % 3, 0, 3000 + 700 * nth), put(2, 0, 20), turn(1)]);
            steps.extend([
                Step::Reserve {
                    worker: nth % WORKERS,
                },
                Step::Reserve {
                    worker: (nth + 1) % WORKERS,
                },
                Step::Bury { nth, pri: 1 },
                turn(0),
                Step::Kick {
                    tube: nth % 3,
                    bound: 1,
                },
                Step::DeleteReserved { nth },
                Step::Delete { nth: 2 + round % 3 },
            ]);
        }
        steps.extend([turn(120), Step::Delete { nth: 4 }, Step::Delete { nth: 5 }]);
        steps.extend([alter(round, to(round % 3)), alter(0, Change::Priority(3))]);
        let (nth, list) = (round, round % 4);
        steps.extend([
            Step::Reserve { worker: 0 },
            beyond(Beyond::Fail {
                nth,
                delay: 1,
                list,
            }),
            beyond(Beyond::Attribute { nth, list }),
            beyond(Beyond::Set {
                name: round % 2,
                size: [20, 0][round % 2],
            }),
        ]);
        match round {
            2 => steps.push(Step::Restart),
            4 => steps.push(Step::Pause {
                tube: 2,
                seconds: 0,
            }),
            _ => steps.push(turn(2200)),
        }
    }
    steps.extend(vec![Step::Delete { nth: 1 }; 12]);
    steps.extend([turn(150), Step::Restart, put(0, 0, 50), turn(0)]);
    steps
}
