//! The table.

use super::*;

fn anchor(name: &str, expires: &str, sha256: &str) -> Anchor {
    Anchor {
        subject: format!("CN={name}"),
        sha256: sha256.repeat(16),
        not_after: String::new(),
        expires: expires.to_owned(),
    }
}

fn report(blocked_by: Vec<ShownBlocker>, states: [State; 5]) -> Report {
    let steps = Step::ALL.into_iter().zip(states);
    let steps = steps.map(|(step, state)| ShownStep {
        step: step.as_str(),
        state,
    });
    let late = blocked_by.len();
    let rotation = Shown {
        began: None,
        age: Some(3 * 3600),
        direction: Direction::Forward,
        compromised: false,
        old_anchors: vec![anchor("root.linkerd.cluster.local", "in 40 days", "1f4e")],
        new_anchor: anchor("root.linkerd.cluster.local", "in 3650 days", "c07a"),
        steps: steps.collect(),
        next: "remove the old anchor from ConfigMap linkerd-identity-trust-roots".to_owned(),
        instruction: None,
        workloads: 41,
        late,
        blocked_by,
    };
    Report {
        context: "prod".to_owned(),
        namespace: "linkerd".to_owned(),
        in_progress: true,
        completed: false,
        rotation: Some(rotation),
        written_by: Vec::new(),
    }
}

fn blocker(name: &str, workload: &str, reason: &str, remedy: &str) -> ShownBlocker {
    ShownBlocker {
        kind: Some(Kind::Pod),
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        workload: Some(workload.to_owned()),
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    }
}

#[test]
fn table_has_anchors_steps_and_the_workloads_that_have_not_followed() {
    let old = "its certificate is not of the new anchor's issuer yet";
    let restart = "kubectl -n shop rollout restart deployment/web";
    let blocked_by = vec![
        blocker("web-7d4f-x2x8q", "deployment/web", old, restart),
        blocker("web-7d4f-9zk4c", "deployment/web", old, restart),
        blocker(
            "db-0",
            "statefulset/db",
            "connection refused\u{1b}[2J",
            "kubectl -n shop logs db-0",
        ),
    ];
    let states = [
        State::Done,
        State::Done,
        State::Waiting,
        State::Pending,
        State::Pending,
    ];
    let expected = "\
Rotation of the trust anchor of namespace linkerd, began 3 hours ago

ANCHOR  SUBJECT                        EXPIRES       SHA-256
old     CN=root.linkerd.cluster.local  in 40 days    1f4e1f4e1f4e1f4e
new     CN=root.linkerd.cluster.local  in 3650 days  c07ac07ac07ac07a

STEP    STATE  RESULT
start   done   new anchor and issuer are stored
add     done   every proxy trusts both anchors
switch  waits  every certificate is of the new anchor's issuer
remove  -      no proxy trusts the old anchor
finish  -      stored keys are deleted, no pod needs the cross-certificate

Next: remove the old anchor from ConfigMap linkerd-identity-trust-roots.
3 of 41 workloads have not followed:

NAMESPACE  WORKLOAD        NAME            REASON
shop       deployment/web  web-7d4f-x2x8q  its certificate is not of the new anchor's issuer yet
shop       deployment/web  web-7d4f-9zk4c  its certificate is not of the new anchor's issuer yet
shop       statefulset/db  db-0            connection refused\\u{1b}[2J

Remedies:
  kubectl -n shop rollout restart deployment/web
  kubectl -n shop logs db-0
";
    assert_eq!(report(blocked_by, states).render(), expected);
}

#[test]
fn long_lists_are_cut_and_counted() {
    let all = (0..SHOWN + 3).map(|number| blocker(&format!("web-{number}"), "", "late", "wait"));
    let states = [
        State::Done,
        State::Waiting,
        State::Pending,
        State::Pending,
        State::Pending,
    ];
    let text = report(all.collect(), states).render();
    assert!(text.contains("and 3 more; -o json has all"), "{text}");
    assert!(!text.contains("web-20"), "{text}");
}

#[test]
fn program_that_writes_the_object_is_named_with_what_it_has_to_change() {
    let states = [
        State::Done,
        State::Done,
        State::Done,
        State::Next,
        State::Pending,
    ];
    let mut report = report(Vec::new(), states);
    report.rotation.as_mut().unwrap().instruction = Some("edit Bundle roots".to_owned());
    report.written_by.push(WrittenBy {
        object: "ConfigMap linkerd-identity-trust-roots".to_owned(),
        owner: "trust-manager, from Bundle roots".to_owned(),
    });
    let text = report.render();
    let expected = "\
This command does not write ConfigMap linkerd-identity-trust-roots, because trust-manager, from Bundle roots writes it and would revert the change.
To do: edit Bundle roots.
";
    assert!(text.ends_with(expected), "{text}");
}
