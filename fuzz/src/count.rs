//! Runs a workload for callgrind, which counts its instructions: `mesh-count NAME TIMES`.

use mesh_fuzz::WORKLOADS;

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, times] = arguments.as_slice() else {
        return Err(usage());
    };
    let work = WORKLOADS.iter().find(|work| work.name == name);
    let (Some(work), Ok(times)) = (work, times.parse()) else {
        return Err(usage());
    };
    (work.run)(times);
    Ok(())
}

fn usage() -> String {
    let names = WORKLOADS.map(|work| work.name).join("|");
    format!("usage: mesh-count {names} TIMES")
}
