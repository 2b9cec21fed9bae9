//! Scripts that have found something, and a slice of generated ones.

use std::time::Duration;

use mesh_controller_simulator::generate::generate;
use mesh_controller_simulator::objects;
use mesh_controller_simulator::report::{first_difference, timeline};
use mesh_controller_simulator::script::{Action, Answer, Cut, Requests, Script, Step};
use mesh_controller_simulator::world::run;

fn at(seconds: u64, action: Action) -> Step {
    Step {
        at: Duration::from_secs(seconds),
        action,
    }
}

fn write(seconds: u64, object: usize, generation: u64) -> Step {
    let write = Action::Write {
        object,
        generation,
        skipped: 100,
    };
    at(seconds, write)
}

/// Plays faults in a world with all objects, which change again at two times.
fn check(changes: [u64; 2], faults: impl IntoIterator<Item = Step>) {
    let all = 0..objects::COUNT;
    let mut steps: Vec<Step> = all.clone().map(|it| write(0, it, it as u64 + 1)).collect();
    for (round, seconds) in (1..).zip(changes) {
        let generation = |object| round * 100 + object as u64;
        steps.extend(all.clone().map(|it| write(seconds, it, generation(it))));
    }
    steps.extend(faults);
    steps.sort_by_key(|step| step.at);
    let script = Script { seed: 1, steps };
    let run = run(&script);
    let happened = || timeline(&script, &run.record).join("\n");
    assert_eq!(run.problems, [], "{}", happened());
}

fn respond(to: Requests, with: Answer, seconds: u64) -> Action {
    Action::Respond {
        to,
        with,
        percent: 100,
        lasting: Duration::from_secs(seconds),
    }
}

#[test]
fn overloaded_api_server_is_asked_again_by_the_controllers_own_back_off() {
    let busy = Answer::Status {
        code: 429,
        retry_after: Some(3600),
    };
    let cut = Action::CutWatches {
        how: Cut::Regularly,
        percent: 100,
    };
    let overload = respond(Requests::All, busy, 20);
    check([12, 40], [at(10, overload), at(11, cut)]);
}

#[test]
fn request_without_a_response_is_repeated() {
    let expired = Action::CutWatches {
        how: Cut::Error(410),
        percent: 100,
    };
    let silent = respond(Requests::All, Answer::Nothing, 5);
    check([12, 40], [at(10, silent), at(11, expired)]);
}

#[test]
fn watch_that_ends_at_once_is_not_restarted_at_once() {
    let cut = Action::CutWatches {
        how: Cut::Regularly,
        percent: 100,
    };
    let empty = respond(Requests::Watches, Answer::Empty, 30);
    check([12, 50], [at(10, empty), at(11, cut)]);
}

#[test]
fn event_that_cannot_be_read_is_not_lost() {
    let garbled = Action::CutWatches {
        how: Cut::Garbled,
        percent: 100,
    };
    check([12, 12], [at(10, garbled)]);
}

#[test]
fn silent_watch_is_noticed() {
    let silent = Action::CutWatches {
        how: Cut::Silent,
        percent: 100,
    };
    check([12, 12], [at(10, silent)]);
}

#[test]
fn lease_of_an_older_state_has_one_holder() {
    let kill = |process| Action::Kill {
        process,
        down: Duration::from_secs(12),
    };
    let restore = |undone| Action::Restart {
        down: Duration::from_millis(100),
        undone,
    };
    // Each replica has held the Lease, and the state of either may come back.
    for undone in [8, 16, 24] {
        let faults = [at(10, kill(1)), at(30, kill(2)), at(50, restore(undone))];
        check([5, 45], faults);
    }
}

#[test]
fn promises_hold_in_generated_scripts() {
    for seed in 0..8 {
        let run = run(&generate(seed));
        assert_eq!(
            run.problems,
            [],
            "cargo xtask simulate --controllers --seed {seed} --count 1"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 100..103 {
        let script = generate(seed);
        let [first, second] = [(); 2].map(|()| run(&script));
        let difference = || first_difference(&script, [&first.record, &second.record]);
        assert_eq!(first.hash, second.hash, "seed {seed}: {:?}", difference());
    }
}
