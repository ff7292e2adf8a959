//! What is told again, what is done anew, and what nobody knows.

use super::*;
use serde_json::json;

fn call(id: &str, digest: &str, place: Place, came_to: CameTo) -> EarlierCall {
    let order = id.bytes().last().map_or(0, usize::from);
    EarlierCall {
        id: id.into(),
        args_digest: digest.into(),
        run: 1,
        order,
        place,
        came_to,
        task: None,
        said: None,
    }
}

/// In a batch of its own; what was done in another manner answers.
fn ask(earlier: &Earlier, args_digest: &str, read_only: bool) -> Known {
    let batch = earlier.next_batch();
    earlier.answer(
        Asking {
            args_digest,
            read_only,
            looks: read_only,
            as_task: false,
            batch,
        },
        |_, _| Kept::Answer,
    )
}

/// A look that is answered.
fn look(earlier: &Earlier) {
    let batch = earlier.next_batch();
    let asking = Asking {
        args_digest: "look",
        read_only: true,
        looks: true,
        as_task: false,
        batch,
    };
    assert_eq!(earlier.answer(asking, |_, _| Kept::Answer), Known::Nothing);
    earlier.looked(batch);
}

fn value(value: impl Into<Value>) -> CameTo {
    CameTo::Value(value.into())
}

#[test]
fn a_recorded_call_answers_once_and_in_order() {
    let earlier = Earlier::new([
        call("1", "w", Place::Change(0), value(1)),
        call("2", "w", Place::Change(1), value(2)),
    ]);
    assert_eq!(ask(&earlier, "w", false), Known::Value(json!(1), None));
    assert_eq!(ask(&earlier, "w", false), Known::Value(json!(2), None));
    assert_eq!(ask(&earlier, "w", false), Known::Nothing);
}

#[test]
fn reads_are_fresh_after_the_first_change() {
    let earlier = Earlier::new([
        call("1", "r", Place::ReadAfter(0), value("old")),
        call("2", "r", Place::ReadAfter(0), value("old")),
        call("3", "w", Place::Change(0), value("done")),
    ]);
    assert_eq!(ask(&earlier, "r", true), Known::Value(json!("old"), None));
    assert_eq!(ask(&earlier, "new write", false), Known::Nothing);
    assert_eq!(ask(&earlier, "r", true), Known::Nothing);
    assert_eq!(ask(&earlier, "w", false), Known::Value(json!("done"), None));
}

#[test]
fn a_read_answers_only_behind_the_changes_it_was_made_behind() {
    let recorded = || {
        Earlier::new([
            call("1", "r", Place::ReadAfter(0), value("before")),
            call("2", "w1", Place::Change(0), value(1)),
            call("3", "r", Place::ReadAfter(1), value("between")),
            call("4", "w2", Place::Change(1), value(2)),
        ])
    };
    let earlier = recorded();
    assert_eq!(ask(&earlier, "w1", false), Known::Value(json!(1), None));
    assert_eq!(
        ask(&earlier, "r", true),
        Known::Value(json!("between"), None)
    );
    let earlier = recorded();
    ask(&earlier, "w1", false);
    ask(&earlier, "w2", false);
    assert_eq!(ask(&earlier, "r", true), Known::Nothing);
    // As many changes, but others.
    let earlier = recorded();
    ask(&earlier, "w2", false);
    assert_eq!(ask(&earlier, "r", true), Known::Nothing);
}

#[test]
fn an_unknown_outcome_is_named_and_what_is_read_after_it_is_fresh() {
    let earlier = Earlier::new([
        call("1", "r", Place::ReadAfter(0), value("before")),
        call("2", "w", Place::Change(0), CameTo::Unknown),
    ]);
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("2".into()));
    assert_eq!(ask(&earlier, "r", true), Known::Nothing);
}

#[test]
fn of_several_unknown_outcomes_each_is_named_before_one_is_repeated() {
    let earlier = Earlier::new([
        call("1", "w", Place::Change(0), CameTo::Unknown),
        call("2", "w", Place::Change(1), CameTo::Unknown),
    ]);
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
    look(&earlier);
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("2".into()));
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("2".into()));
    look(&earlier);
    assert_eq!(ask(&earlier, "w", false), Known::Again("1".into()));
    assert_eq!(ask(&earlier, "w", false), Known::Nothing);
}

#[test]
fn a_look_that_nobody_saw_the_end_of_is_made_again() {
    let earlier = Earlier::new([call("1", "status", Place::Change(0), CameTo::Unknown)]);
    let asking = Asking {
        args_digest: "status",
        read_only: false,
        looks: true,
        as_task: false,
        batch: 1,
    };
    assert_eq!(earlier.answer(asking, |_, _| Kept::Answer), Known::Nothing);
}

#[test]
fn whoever_tries_again_without_looking_is_told_the_same() {
    let earlier = Earlier::new([call("1", "w", Place::Change(0), CameTo::Unknown)]);
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
    assert_eq!(ask(&earlier, "another", false), Known::Nothing);
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
    // A look that nobody answered, and one that was under way when the script was told, are none.
    assert_eq!(ask(&earlier, "look", true), Known::Nothing);
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
    let under_way = earlier.next_batch();
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
    earlier.looked(under_way);
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
    look(&earlier);
    assert_eq!(ask(&earlier, "w", false), Known::Again("1".into()));
    assert_eq!(ask(&earlier, "w", false), Known::Nothing);
}

#[test]
fn calls_of_one_batch_know_nothing_of_each_other() {
    let earlier = Earlier::new([call("1", "w", Place::Change(0), CameTo::Unknown)]);
    let batch = earlier.next_batch();
    let asking = |args_digest, read_only| Asking {
        args_digest,
        read_only,
        looks: read_only,
        as_task: false,
        batch,
    };
    assert_eq!(
        earlier.answer(asking("w", false), |_, _| Kept::Answer),
        Known::Unknown("1".into())
    );
    assert_eq!(
        earlier.answer(asking("look", true), |_, _| Kept::Answer),
        Known::Nothing
    );
    earlier.looked(batch);
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
}

#[test]
fn what_is_asked_for_in_another_manner_is_the_same_work() {
    let recorded = |came_to| Earlier::new([call("1", "w", Place::Change(0), came_to)]);
    let otherwise = |earlier: &Earlier, kept: Kept| {
        let batch = earlier.next_batch();
        let asking = Asking {
            args_digest: "w.slowly",
            read_only: false,
            looks: false,
            as_task: false,
            batch,
        };
        earlier.answer(asking, |_, manner| {
            if manner == Manner::Other {
                kept.clone()
            } else {
                Kept::Answer
            }
        })
    };
    let earlier = recorded(CameTo::Unknown);
    assert_eq!(
        otherwise(&earlier, Kept::Answer),
        Known::Unknown("1".into())
    );
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
    let earlier = recorded(value(1));
    assert_eq!(
        otherwise(&earlier, Kept::Answer),
        Known::Value(json!(1), None)
    );
    assert_eq!(ask(&earlier, "w", false), Known::Nothing);
    assert_eq!(
        otherwise(&recorded(value(1)), Kept::Unfinished),
        Known::Unknown("1".into())
    );
    // Whoever is refused may ask in the right manner.
    let earlier = recorded(value(1));
    let why = "in another form".to_owned();
    assert_eq!(
        otherwise(&earlier, Kept::Refused(why.clone())),
        Known::Refused("1".into(), why)
    );
    assert_eq!(ask(&earlier, "w", false), Known::Value(json!(1), None));
}

#[test]
fn of_two_calls_for_the_same_each_hears_what_it_heard_then() {
    let recorded = [
        call("2", "w", Place::Change(1), value("done")),
        call("3", "w", Place::Change(2), value("done as well")),
        call("1", "w", Place::Change(0), CameTo::Unknown),
    ];
    let earlier = Earlier::new(recorded.clone());
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
    assert_eq!(ask(&earlier, "w", false), Known::Value(json!("done"), None));
    assert_eq!(
        ask(&earlier, "w", false),
        Known::Value(json!("done as well"), None)
    );
    assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
    // What a later run did is what was unknown before.
    let mut again = recorded.clone();
    (again[0].run, again[1].run) = (2, 2);
    let earlier = Earlier::new(again);
    assert_eq!(ask(&earlier, "w", false), Known::Value(json!("done"), None));
    // In another manner, what is done answers first.
    let earlier = Earlier::new(recorded);
    assert_eq!(
        ask(&earlier, "w.slowly", false),
        Known::Value(json!("done"), None)
    );
}

#[test]
fn what_is_done_by_another_way_is_not_made_instead_of_what_may_be() {
    let earlier = Earlier::new([
        call("1", "w..terminal", Place::Change(0), value("done")),
        call("2", "w..words", Place::Change(1), CameTo::Unknown),
    ]);
    let words = |earlier: &Earlier| {
        let batch = earlier.next_batch();
        let asking = Asking {
            args_digest: "w..words",
            read_only: false,
            looks: false,
            as_task: false,
            batch,
        };
        earlier.answer(asking, |_, manner| match manner {
            Manner::OtherWay => Kept::Refused("by another way".into()),
            _ => Kept::Answer,
        })
    };
    assert_eq!(words(&earlier), Known::Unknown("2".into()));
    look(&earlier);
    assert_eq!(
        words(&earlier),
        Known::Refused("1".into(), "by another way".into())
    );
    assert_eq!(
        ask(&earlier, "w..terminal", false),
        Known::Value(json!("done"), None)
    );
    assert_eq!(words(&earlier), Known::Again("2".into()));
}

#[test]
fn what_was_done_at_last_answers_before_what_was_stopped() {
    let earlier = Earlier::new([
        call("1", "w.short", Place::Change(0), value("stopped")),
        call("2", "w.long", Place::Change(1), value("done")),
    ]);
    let kept = |value: &Value, manner| match (value == "stopped", manner) {
        (true, Manner::Other) => Kept::Unfinished,
        _ => Kept::Answer,
    };
    let asking = Asking {
        args_digest: "w.longer",
        read_only: false,
        looks: false,
        as_task: false,
        batch: 1,
    };
    assert_eq!(
        earlier.answer(asking, kept),
        Known::Value(json!("done"), None)
    );
    assert_eq!(earlier.answer(asking, kept), Known::Unknown("1".into()));
}

#[test]
fn whoever_looks_after_a_change_sees_what_is_there_now() {
    // Recorded as a change, because nobody vouches for what it says of itself.
    let recorded = || Earlier::new([call("1", "balance", Place::Change(0), value(0))]);
    let look = |earlier: &Earlier| {
        let asking = Asking {
            args_digest: "balance",
            read_only: false,
            looks: true,
            as_task: false,
            batch: earlier.next_batch(),
        };
        earlier.answer(asking, |_, _| Kept::Answer)
    };
    assert_eq!(look(&recorded()), Known::Value(json!(0), None));
    let earlier = recorded();
    ask(&earlier, "pay", false);
    assert_eq!(look(&earlier), Known::Nothing);
    // Behind a change that answers it was another look.
    let paid = call("2", "pay", Place::Change(1), value("paid"));
    let earlier = Earlier::new([call("1", "balance", Place::Change(0), value(0)), paid]);
    assert_eq!(
        ask(&earlier, "pay", false),
        Known::Value(json!("paid"), None)
    );
    assert_eq!(look(&earlier), Known::Nothing);
    let unknown = call("2", "pay", Place::Change(1), CameTo::Unknown);
    let earlier = Earlier::new([call("1", "balance", Place::Change(0), value(0)), unknown]);
    assert_eq!(look(&earlier), Known::Nothing);
}

#[test]
fn a_read_in_another_manner_is_another_read() {
    let earlier = Earlier::new([call("1", "r", Place::ReadAfter(0), value("short"))]);
    assert_eq!(ask(&earlier, "r.whole", true), Known::Nothing);
    assert_eq!(ask(&earlier, "r", true), Known::Value(json!("short"), None));
}

#[test]
fn an_unknown_read_is_done_again() {
    let earlier = Earlier::new([call("1", "r", Place::ReadAfter(0), CameTo::Unknown)]);
    assert_eq!(ask(&earlier, "r", true), Known::Nothing);
}

#[test]
fn what_has_answered_is_remembered_for_another_process() {
    let recorded = || {
        Earlier::new([
            call("1", "w", Place::Change(0), value(1)),
            call("2", "r", Place::ReadAfter(1), value("then")),
        ])
    };
    let (first, second) = (recorded(), recorded());
    ask(&first, "w", false);
    second.spend(&first.spent());
    assert_eq!(ask(&second, "r", true), Known::Value(json!("then"), None));
    assert_eq!(ask(&second, "w", false), Known::Nothing);
}

#[test]
fn what_another_build_digested_is_known_by_what_was_said() {
    let said = |id: &str, digest: &str, number, came_to, args: i64| EarlierCall {
        said: Some(("pay".into(), json!(args))),
        ..call(id, digest, Place::Change(number), came_to)
    };
    let digest_of = |tool: &str, args: &Value| (args != 9).then(|| format!("{tool}{args}"));
    let earlier = Earlier::new([
        said("1", "old a", 0, value("first"), 5),
        said("2", "old b", 1, value("second"), 5),
        said("3", "old c", 2, value("not there yet"), 9),
    ]);
    earlier.recognise(digest_of);
    assert_eq!(
        ask(&earlier, "pay5", false),
        Known::Value(json!("first"), None)
    );
    assert_eq!(
        ask(&earlier, "pay5", false),
        Known::Value(json!("second"), None)
    );
    assert_eq!(ask(&earlier, "pay9", false), Known::Nothing);
    earlier.recognise(|tool, args| Some(format!("{tool}{args}")));
    assert_eq!(
        ask(&earlier, "pay9", false),
        Known::Value(json!("not there yet"), None)
    );
    // Also where that build was told to check.
    let unknown = || Earlier::new([said("1", "old", 0, CameTo::Unknown, 5)]);
    let (then, now) = (unknown(), unknown());
    assert_eq!(ask(&then, "old", false), Known::Unknown("1".into()));
    now.spend(&then.spent());
    now.recognise(digest_of);
    assert_eq!(ask(&now, "pay5", false), Known::Unknown("1".into()));
    look(&now);
    assert_eq!(ask(&now, "pay5", false), Known::Again("1".into()));
}

#[test]
fn a_task_that_goes_on_is_for_those_who_wait() {
    let recorded = || {
        Earlier::new([call(
            "tsk_1/tool_1",
            "w..exec",
            Place::Change(0),
            CameTo::GoesOn("tsk_1".into()),
        )])
    };
    let task = |digest, as_task| {
        let asking = Asking {
            args_digest: digest,
            read_only: false,
            looks: false,
            batch: 1,
            as_task,
        };
        recorded().answer(asking, |_, _| Kept::Answer)
    };
    assert_eq!(task("w..exec", true), Known::GoesOn("tsk_1".into()));
    assert_eq!(task("w.longer.exec", true), Known::GoesOn("tsk_1".into()));
    assert_eq!(
        task("w..exec", false),
        Known::Refused("tsk_1".into(), WAIT_FOR_IT.into())
    );
    assert_eq!(
        task("w..terminal", true),
        Known::Refused("tsk_1".into(), WAIT_FOR_IT.into())
    );
}

#[test]
fn what_was_told_to_check_is_remembered_for_another_process() {
    let recorded = || Earlier::new([call("1", "x", Place::Change(0), CameTo::Unknown)]);
    let (first, second) = (recorded(), recorded());
    ask(&first, "x", false);
    second.spend(&first.spent());
    assert_eq!(ask(&second, "x", false), Known::Unknown("1".into()));
    look(&second);
    let third = recorded();
    third.spend(&second.spent());
    assert_eq!(ask(&third, "x", false), Known::Again("1".into()));
}
