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
            Op::Touch => Reply::Touched,
            Op::Use => Reply::Using,
            Op::Watch => Reply::Watching,
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
