//! A model of the hand-over between node agents: an operator, the DaemonSets of agents, agents that
//! are restarted, moved to another namespace or uninstalled, and the connections of a pod
//! (docs/adr/0192). The decisions are mesh-agent's, and the kernel programs' verdicts decide about
//! connections.
//!
//! Every order of their steps is checked: watches that are late, that list again or never began,
//! requests that are denied or get no response, agents that are stopped at any time:
//!
//! * No connection of the pod goes past its proxy while a DaemonSet of agents remains.
//! * An agent that was asked to uninstall, and whose request was answered, removes the mesh.

use mesh_ebpf_common::address::Address;
use mesh_ebpf_common::layout::{FLAG_INBOUND, PodConfig};
use mesh_ebpf_common::verdict::{ConnectAttempt, Outbound, outbound};
use mesh_models::violated;
use stateright::{Model, Property};

use self::daemon_set::decision::{
    DaemonSetRef, OwnState, QueryResult, SetState, Sets, ShutdownAction, WatchState, decide,
};

#[path = "../../mesh-agent/src/kubernetes/daemon_set"]
mod daemon_set {
    #[allow(
        dead_code,
        unreachable_pub,
        reason = "the model uses a part of the file"
    )]
    pub(crate) mod decision;
}

/// What the operator does, step by step.
#[derive(Clone, Copy, Debug)]
struct HandOver(&'static [Change]);

/// A change at the API server. The number of a DaemonSet is the index of its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Set(usize, SetState),
    Gone(usize),
    /// The account or the role of the agents of a namespace is deleted.
    Deny(usize),
    /// Waits until agents of the namespace run.
    Await(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The number of changes that were made.
    changes: usize,
    sets: [Option<SetState>; 2],
    /// What watches report, in the order of the changes.
    events: Vec<(usize, Option<SetState>)>,
    is_denied: [bool; 2],
    agents: [Agent; 2],
    /// The node's pods are redirected.
    is_installed: bool,
    /// A connection has gone past the proxy although a DaemonSet was there.
    had_clear_text: bool,
    /// An agent has kept the mesh although an answer said that no DaemonSet remains.
    was_left: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Agent {
    activity: Activity,
    watch: WatchState,
    /// The number of events that the watch has reported; `None` before its first list.
    seen: Option<usize>,
    /// It was started again once.
    was_restarted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Activity {
    Absent,
    Runs,
    /// SIGTERM: it asks for the DaemonSets.
    Stops,
    /// It waits for the watch, if there was no answer.
    Knows(QueryResult),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Operate,
    Start(usize),
    /// The watch of an agent reports the next event, or all DaemonSets.
    Event(usize),
    List(usize),
    Stop(usize),
    Ask(usize),
    AskInVain(usize),
    Decide(usize),
    /// The application of a pod connects to another pod.
    Connect,
}

const NAMESPACES: [&str; 2] = ["linkerd", "linkerd-agent"];
const OLD: usize = 0;
const NEW: usize = 1;

fn own(agent: usize) -> DaemonSetRef {
    DaemonSetRef {
        namespace: NAMESPACES[agent].to_owned(),
        name: "mesh-agent".to_owned(),
    }
}

fn all(sets: [Option<SetState>; 2]) -> Sets {
    let mut all = Sets::default();
    for (namespace, state) in NAMESPACES.iter().zip(sets) {
        if let Some(state) = state {
            all.insert(namespace, state);
        }
    }
    all
}

/// Whether the kernel redirects a connection of an enrolled pod to its proxy.
fn is_redirected() -> bool {
    let pod = PodConfig {
        v4: Address::from_v4(u32::from_ne_bytes([10, 0, 0, 1])),
        v6: Address::UNSPECIFIED,
        proxy_uid: 2102,
        flags: FLAG_INBOUND,
        inbound_port: 4143,
        outbound_port: 4140,
    };
    let attempt = ConnectAttempt {
        destination: Address::from_v4(u32::from_ne_bytes([10, 0, 0, 2])),
        port: 80,
        source: Address::UNSPECIFIED,
        on_loopback: false,
        by_proxy: false,
    };
    let verdict = outbound(&pod, &attempt, |it| it.same(&pod.v4), |_port| false);
    matches!(verdict, Outbound::Redirect(_))
}

impl State {
    fn is_kept(&self) -> bool {
        self.sets.contains(&Some(SetState::Present))
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Set(namespace, state) => self.set(namespace, Some(state)),
            Change::Gone(namespace) => self.set(namespace, None),
            Change::Deny(namespace) => self.is_denied[namespace] = true,
            Change::Await(_) => {}
        }
        self.changes += 1;
    }

    fn set(&mut self, namespace: usize, state: Option<SetState>) {
        self.sets[namespace] = state;
        self.events.push((namespace, state));
    }

    fn decide(&mut self, agent: usize) {
        let Activity::Knows(result) = self.agents[agent].activity.clone() else {
            return;
        };
        let action = decide(&self.agents[agent].watch, &result, &own(agent));
        let removes = matches!(action, ShutdownAction::Uninstall(_));
        if removes {
            self.is_installed = false;
        }
        let has_seen_it = self.agents[agent].watch.own != OwnState::NotSeen;
        if let QueryResult::Found(found) = &result {
            self.was_left |= !removes && has_seen_it && *found == Sets::default();
        }
        self.agents[agent].activity = Activity::Absent;
    }
}

impl Model for HandOver {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let agent = |activity| Agent {
            activity,
            watch: WatchState::default(),
            seen: None,
            was_restarted: false,
        };
        vec![State {
            changes: 0,
            sets: [Some(SetState::Present), None],
            events: Vec::new(),
            is_denied: [false; 2],
            agents: [agent(Activity::Runs), agent(Activity::Absent)],
            is_installed: true,
            had_clear_text: false,
            was_left: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Connect);
        match self.0.get(state.changes) {
            Some(Change::Await(agent)) if state.agents[*agent].activity != Activity::Runs => {}
            Some(_) => actions.push(Action::Operate),
            None => {}
        }
        for (at, agent) in state.agents.iter().enumerate() {
            let is_scheduled = state.sets[at] == Some(SetState::Present);
            match &agent.activity {
                // Both declare the port of the admin server on the node.
                Activity::Absent if is_scheduled && !agent.was_restarted => {
                    let mut others = state.agents.iter();
                    if others.all(|it| it.activity == Activity::Absent) {
                        actions.push(Action::Start(at));
                    }
                    continue;
                }
                Activity::Absent => continue,
                Activity::Runs => actions.push(Action::Stop(at)),
                Activity::Stops => {
                    if !state.is_denied[at] {
                        actions.push(Action::Ask(at));
                    }
                    actions.push(Action::AskInVain(at));
                }
                Activity::Knows(_) => actions.push(Action::Decide(at)),
            }
            if agent.seen.is_some_and(|seen| seen < state.events.len()) {
                actions.push(Action::Event(at));
            }
            if !state.is_denied[at] {
                actions.push(Action::List(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Operate => state.change(self.0[last.changes]),
            Action::Start(at) => {
                let agent = &mut state.agents[at];
                agent.activity = Activity::Runs;
                (agent.watch, agent.seen) = (WatchState::default(), None);
                agent.was_restarted = true;
                // It enrols the pods of its node.
                state.is_installed = true;
            }
            Action::Event(at) => {
                let agent = &mut state.agents[at];
                let seen = agent.seen?;
                let (namespace, set) = last.events[seen];
                let namespace = NAMESPACES[namespace];
                agent.watch.see(&own(at), |sets| match set {
                    Some(set) => sets.insert(namespace, set),
                    None => sets.remove(namespace),
                });
                agent.seen = Some(seen + 1);
            }
            Action::List(at) => {
                let agent = &mut state.agents[at];
                agent.watch.see(&own(at), |sets| *sets = all(last.sets));
                agent.seen = Some(last.events.len());
            }
            Action::Stop(at) => state.agents[at].activity = Activity::Stops,
            Action::Ask(at) => {
                let found = QueryResult::Found(all(last.sets));
                state.agents[at].activity = Activity::Knows(found);
            }
            Action::AskInVain(at) => {
                let unknown = QueryResult::Unknown("no answer".to_owned());
                state.agents[at].activity = Activity::Knows(unknown);
            }
            Action::Decide(at) => state.decide(at),
            Action::Connect => {
                let is_served = last.is_installed && is_redirected();
                state.had_clear_text |= !is_served && last.is_kept();
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(CLEAR_TEXT, |_, state: &State| !state.had_clear_text),
            Property::always(
                "an answered uninstallation removes the mesh",
                |_, state: &State| !state.was_left,
            ),
            Property::sometimes("the operator is done", |model: &Self, state: &State| {
                let are_absent = state
                    .agents
                    .iter()
                    .all(|it| it.activity == Activity::Absent);
                let ends = state.is_kept() || !state.is_installed && are_absent;
                state.changes == model.0.len() && ends
            }),
        ]
    }
}

const CLEAR_TEXT: &str = "no connection goes past the proxy while agents remain";
const NONE: [&str; 0] = [];

#[test]
fn agent_that_is_restarted_or_uninstalled_acts_on_its_daemon_set() {
    for operator in [
        &[][..],
        &[
            Change::Deny(OLD),
            Change::Set(OLD, SetState::Deleting),
            Change::Gone(OLD),
        ],
        &[
            Change::Set(OLD, SetState::Deleting),
            Change::Deny(OLD),
            Change::Gone(OLD),
        ],
    ] {
        assert_eq!(violated(HandOver(operator)), NONE, "{operator:?}");
    }
}

#[test]
fn agents_move_to_another_namespace_without_a_gap() {
    for operator in [
        // The chart, and one without the DaemonSet that selects no node.
        &[
            Change::Set(NEW, SetState::Present),
            Change::Set(OLD, SetState::Moved),
            Change::Await(NEW),
        ][..],
        &[
            Change::Set(NEW, SetState::Present),
            Change::Deny(OLD),
            Change::Set(OLD, SetState::Deleting),
            Change::Gone(OLD),
            Change::Await(NEW),
        ],
        &[
            Change::Set(NEW, SetState::Present),
            Change::Deny(OLD),
            Change::Gone(OLD),
            Change::Await(NEW),
        ],
        // An uninstallation afterwards.
        &[
            Change::Set(NEW, SetState::Present),
            Change::Set(OLD, SetState::Moved),
            Change::Await(NEW),
            Change::Deny(NEW),
            Change::Gone(OLD),
            Change::Set(NEW, SetState::Deleting),
            Change::Gone(NEW),
        ],
    ] {
        assert_eq!(violated(HandOver(operator)), NONE, "{operator:?}");
    }
}

#[test]
fn deletion_before_the_creation_of_a_successor_leaves_a_gap() {
    let operator = HandOver(&[
        Change::Set(OLD, SetState::Deleting),
        Change::Gone(OLD),
        Change::Set(NEW, SetState::Present),
        Change::Await(NEW),
    ]);
    assert_eq!(violated(operator), [CLEAR_TEXT]);
}
