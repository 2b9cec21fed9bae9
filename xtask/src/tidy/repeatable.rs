//! House rule about what a simulation must be able to repeat (docs/adr/0210): the proxy's chance,
//! sockets and orders come from the modules that a simulated world exchanges, and selects of the
//! controllers have an order.

use super::Finding;
use super::source::has_word;
use super::tree::{File, Tree};

const PROXY: &str = "mesh-proxy/src/";

/// The parts of the controllers that a simulation runs.
const CONTROLLERS: [&str; 8] = [
    "mesh-cluster/src/api_server",
    "mesh-cluster/src/daemon",
    "mesh-cluster/src/source",
    "control-plane/src/daemon",
    "control-plane/src/injector",
    "control-plane/src/serve",
    "control-plane/src/status",
    "control-plane/src/writer",
];

struct Seam {
    /// The words of a line that together name it.
    words: &'static [&'static str],
    /// The module that may name it, below [`PROXY`].
    place: &'static str,
    instead: &'static str,
}

#[rustfmt::skip] // a table, one row a line
const SEAMS: [Seam; 6] = [
    seam(&["tokio", "net"], "transport/", "use transport::socket and transport::listen, which a simulation replaces"),
    seam(&["sync", "watch"], "watch", "use crate::watch: tokio wakes receivers in a random order"),
    seam(&["rand", "rng"], "random", "use crate::random, which a simulation seeds"),
    seam(&["rand", "random"], "random", "use crate::random, which a simulation seeds"),
    seam(&["RandomState"], "random", "use random::Map, whose order a simulation repeats"),
    seam(&["spawn_blocking"], "nowhere", "do it in the task, or on a thread that no connection waits for"),
];

const fn seam(words: &'static [&'static str], place: &'static str, instead: &'static str) -> Seam {
    Seam {
        words,
        place,
        instead,
    }
}

pub(crate) fn seams(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        if CONTROLLERS.iter().any(|part| file.path.starts_with(part)) {
            findings.extend(unordered_selects(file));
        }
        let Some(path) = file.path.strip_prefix(PROXY) else {
            continue;
        };
        for seam in SEAMS.iter().filter(|seam| !path.starts_with(seam.place)) {
            let names_it = |code: &str| seam.words.iter().all(|word| has_word(code, word));
            let named = file.production_code().filter(|(_, code)| names_it(code));
            findings.extend(named.map(|(line, _)| file.finding(line, "repeatable", seam.instead)));
        }
        findings.extend(unordered_selects(file));
    }
    findings
}

/// Reports selects that draw the branch that they poll first.
fn unordered_selects(file: &File) -> Vec<Finding> {
    let code: Vec<_> = file.production_code().collect();
    let mut findings = Vec::new();
    for (index, (line, code_line)) in code.iter().enumerate() {
        let next = code.get(index + 1).map_or("", |(_, next)| next.trim());
        if code_line.contains("select! {") && next != "biased;" {
            let advice = "begin with `biased;`, and order the branches so that none is starved";
            findings.push(file.finding(*line, "repeatable", advice));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn what_a_simulation_cannot_repeat_is_reported() {
        let tree = Tree::of(&[
            (
                "mesh-proxy/src/worker.rs",
                "use tokio::net::TcpStream;\nuse tokio::sync::{Notify, watch};\nlet a = rand::rng();\n",
            ),
            (
                "mesh-proxy/src/admin.rs",
                "use crate::watch;\nlet a = random::random();\nuse rand::rngs::SmallRng;\n",
            ),
            (
                "mesh-proxy/src/transport/socket.rs",
                "use tokio::net::TcpStream;\n",
            ),
            (
                "mesh-proxy/src/watch.rs",
                "pub use tokio::sync::watch::channel;\n",
            ),
            ("control-plane/src/serve.rs", "use tokio::sync::watch;\n"),
        ]);
        let worker = "mesh-proxy/src/worker.rs";
        assert_eq!(
            places(&seams(&tree)),
            [(worker, 1), (worker, 2), (worker, 3)]
        );
    }

    #[test]
    fn select_without_an_order_is_reported() {
        let code = "tokio::select! {\n    biased;\n}\ntokio::select! {\n    () = a => {}\n}\n";
        let (worker, writer) = (
            "mesh-proxy/src/worker.rs",
            "control-plane/src/writer/queue.rs",
        );
        let others = "control-plane/src/identity.rs";
        let tree = Tree::of(&[(worker, code), (writer, code), (others, code)]);
        assert_eq!(places(&seams(&tree)), [(worker, 4), (writer, 4)]);
    }
}
