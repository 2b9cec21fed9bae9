//! Does a piece of the proxy's work so many times, for a program that counts instructions:
//! `mesh-count NAME TIMES`.

use mesh_fuzz::WORKS;

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, times] = arguments.as_slice() else {
        return Err(usage());
    };
    let work = WORKS.iter().find(|work| work.name == name);
    let (Some(work), Ok(times)) = (work, times.parse()) else {
        return Err(usage());
    };
    (work.run)(times);
    Ok(())
}

fn usage() -> String {
    let names = WORKS.map(|work| work.name).join("|");
    format!("usage: mesh-count {names} TIMES")
}
