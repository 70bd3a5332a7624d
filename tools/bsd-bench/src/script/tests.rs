use std::collections::HashMap;

use super::*;

const FOREVER: u64 = u64::MAX;

fn state() -> State {
    State::new(Tubes::share("t", 0, 0, 1), 1)
}

fn script(workload: Workload, pipeline: usize) -> Script {
    Script::new(workload, pipeline, BodySizes::fixed(3))
}

/// Send until a batch is over, and answer as a server would, ids counting up.
fn batch(state: &mut State, script: &Script, budget: &mut Budget, id: &mut u64) -> Vec<Op> {
    let mut ops = Vec::new();
    while let Some(op) = state.next(script, budget, 0, &mut Vec::new()) {
        ops.push(op);
        if state.is_phase_over() {
            break;
        }
    }
    for op in &ops {
        *id += 1;
        let reply = match op {
            Op::Put => Reply::Inserted(*id),
            Op::Reserve => Reply::Reserved(*id, 3),
            Op::Delete => Reply::Deleted,
            Op::Release => Reply::Released,
            Op::Bury => Reply::Buried,
            Op::Kick => Reply::Kicked,
            Op::Clear => Reply::Cleared,
            Op::Touch => Reply::Touched,
            Op::Use => Reply::Using,
            Op::Watch => Reply::Watching,
            Op::Pause => Reply::Paused,
            Op::ListTubes => Reply::Listed(3),
            Op::Peek => unreachable!("no client waits for the reply to a peek"),
        };
        state.take(script, *op, reply).unwrap();
    }
    ops
}

#[test]
fn a_cycle_puts_reserves_and_deletes_as_deep_as_the_pipeline() {
    let (mut state, script) = (state(), script(Workload::Cycle, 2));
    let mut budget = Budget {
        left: 3,
        end: FOREVER,
    };
    let mut next = || batch(&mut state, &script, &mut budget, &mut 0);
    let expected = [
        (Op::Put, 2),
        (Op::Reserve, 2),
        (Op::Delete, 2),
        (Op::Put, 1),
        (Op::Reserve, 1),
        (Op::Delete, 1),
    ];
    for (op, count) in expected {
        assert_eq!(next(), vec![op; count]);
    }
    assert!(next().is_empty());
    assert!(state.is_done);
}

#[test]
fn a_delete_waits_for_the_id() {
    let (mut state, script) = (state(), script(Workload::Probe, 1));
    let mut budget = Budget {
        left: 1,
        end: FOREVER,
    };
    let mut out = Vec::new();
    assert_eq!(state.next(&script, &mut budget, 0, &mut out), Some(Op::Put));
    assert_eq!(state.next(&script, &mut budget, 0, &mut out), None);
    state.take(&script, Op::Put, Reply::Inserted(77)).unwrap();
    out.clear();
    assert_eq!(
        state.next(&script, &mut budget, 0, &mut out),
        Some(Op::Delete)
    );
    assert_eq!(out, b"delete 77\r\n");
}

#[test]
fn a_drain_ends_when_there_is_nothing_to_reserve() {
    let (mut state, script) = (state(), script(Workload::Drain, 2));
    let mut budget = Budget {
        left: FOREVER,
        end: FOREVER,
    };
    let mut out = Vec::new();
    for _ in 0..2 {
        assert_eq!(
            state.next(&script, &mut budget, 0, &mut out),
            Some(Op::Reserve)
        );
    }
    state
        .take(&script, Op::Reserve, Reply::Reserved(5, 3))
        .unwrap();
    state.take(&script, Op::Reserve, Reply::TimedOut).unwrap();
    assert_eq!(
        state.next(&script, &mut budget, 0, &mut out),
        Some(Op::Delete)
    );
    state.take(&script, Op::Delete, Reply::Deleted).unwrap();
    assert_eq!(state.next(&script, &mut budget, 0, &mut out), None);
    assert!(state.is_done);
}

#[test]
fn a_mix_is_made_of_all_commands_and_keeps_its_balance() {
    let (mut state, script) = (state(), script(Workload::Mix, 16));
    let mut budget = Budget {
        left: 100_000,
        end: FOREVER,
    };
    let (mut counts, mut id) = (HashMap::<Op, u32>::new(), 0);
    while !state.is_done {
        for op in batch(&mut state, &script, &mut budget, &mut id) {
            *counts.entry(op).or_default() += 1;
        }
    }
    assert_eq!(counts.values().sum::<u32>(), 100_000);
    let of = |op| f64::from(counts[&op]) / 1000.0;
    let (puts, deletes, kicks) = (of(Op::Put), of(Op::Delete), of(Op::Kick));
    assert!(
        (puts - 26.0).abs() < 3.0 && (deletes - 26.0).abs() < 3.0,
        "{counts:?}"
    );
    assert!(kicks > 0.5 && of(Op::Touch) > 5.0, "{counts:?}");
    assert!(of(Op::Bury) > 2.0 && of(Op::Release) > 3.0, "{counts:?}");
}

#[test]
fn a_connection_with_several_tubes_puts_into_one_after_another() {
    let mut state = State::new(Tubes::share("t", 2, 0, 1), 1);
    let script = script(Workload::Put, 1);
    let mut budget = Budget {
        left: 2,
        end: FOREVER,
    };
    let mut out = Vec::new();
    let mut ops = Vec::new();
    while let Some(op) = state.next(&script, &mut budget, 0, &mut out) {
        ops.push(op);
    }
    assert_eq!(ops, [Op::Use, Op::Put, Op::Use, Op::Put]);
    let text = String::from_utf8(out).unwrap();
    assert!(text.find("use t1").unwrap() < text.find("use t0").unwrap());
}

#[test]
fn every_pause_is_of_a_tube_that_there_was_not() {
    let script = script(Workload::Pause, 2);
    let mut seen = std::collections::HashSet::new();
    for seed in [1, 2] {
        let mut state = State::new(Tubes::share("t", 0, 0, 1), seed);
        let mut budget = Budget {
            left: 3,
            end: FOREVER,
        };
        let mut out = Vec::new();
        let mut ops = Vec::new();
        while let Some(op) = state.next(&script, &mut budget, 0, &mut out) {
            ops.push(op);
        }
        assert_eq!(ops, [Op::Use, Op::Pause].repeat(3));
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        for pair in lines.chunks(2) {
            let tube = pair[0].strip_prefix("use ").unwrap();
            assert_eq!(pair[1], format!("pause-tube {tube} 4294967295"));
            assert!(seen.insert(tube.to_owned()), "{tube} comes twice");
        }
    }
}

#[test]
fn a_poll_goes_on_when_there_is_nothing() {
    let (mut state, script) = (state(), script(Workload::Poll, 2));
    let mut budget = Budget {
        left: 4,
        end: FOREVER,
    };
    for _ in 0..2 {
        let mut out = Vec::new();
        for _ in 0..2 {
            let op = state.next(&script, &mut budget, 0, &mut out);
            assert_eq!(op, Some(Op::Reserve));
        }
        assert_eq!(out, b"reserve-with-timeout 0\r\n".repeat(2));
        for _ in 0..2 {
            state.take(&script, Op::Reserve, Reply::TimedOut).unwrap();
        }
        assert!(!state.is_done);
    }
    assert_eq!(state.next(&script, &mut budget, 0, &mut Vec::new()), None);
    assert!(state.is_done);
}

#[test]
fn a_refused_put_ends_its_round_where_refusals_are_expected_and_is_an_error_elsewhere() {
    let (mut state, mut script) = (state(), script(Workload::Probe, 1));
    let mut budget = Budget {
        left: 2,
        end: FOREVER,
    };
    let mut out = Vec::new();
    assert_eq!(state.next(&script, &mut budget, 0, &mut out), Some(Op::Put));
    let refused = state.take(&script, Op::Put, Reply::OutOfMemory);
    assert!(refused.is_err());
    script.may_be_refused = true;
    state.take(&script, Op::Put, Reply::OutOfMemory).unwrap();
    // There is nothing to delete: the next round begins.
    assert_eq!(state.next(&script, &mut budget, 0, &mut out), Some(Op::Put));
}
