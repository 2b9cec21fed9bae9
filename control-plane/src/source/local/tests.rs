//! Files that come, change, break and go.

use std::fs;

use super::*;

struct Fixture {
    dirs: Vec<tempfile::TempDir>,
    folders: Folders,
}

impl Fixture {
    fn new(count: usize) -> Self {
        let dirs: Vec<_> = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
        let paths = dirs.iter().map(|dir| dir.path().to_owned()).collect();
        Self {
            dirs,
            folders: Folders::new(paths, &Registry::new()),
        }
    }

    /// Written to a draft and renamed, so that every version has an inode of its own.
    fn write(&self, dir: usize, name: &str, text: &str) {
        let dir = self.dirs[dir].path();
        fs::write(dir.join(".draft"), text).unwrap();
        fs::rename(dir.join(".draft"), dir.join(name)).unwrap();
    }

    fn first(&mut self) -> Vec<String> {
        summary(self.folders.look(true))
    }

    /// A change counts at the second look that sees it.
    fn settled(&mut self) -> Vec<String> {
        assert_eq!(summary(self.folders.look(false)), [""; 0]);
        summary(self.folders.look(false))
    }
}

fn summary(batch: Batch) -> Vec<String> {
    batch
        .into_iter()
        .flat_map(|change| match change {
            Change::Apply(object) => vec![format!("+{}", describe(&object))],
            Change::Delete(key) => vec![format!("-{key}")],
            Change::Restarted(objects) => objects
                .iter()
                .map(|o| format!("={}", describe(o)))
                .collect(),
        })
        .collect()
}

fn describe(object: &Object) -> String {
    match object {
        Object::Service(service) => {
            format!("{}:{}", service.name.name, service.ports[0].number)
        }
        other => other.key().to_string(),
    }
}

fn service(name: &str, port: u32) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: ns}}\nspec: {{ports: [{{port: {port}}}]}}\n---\n"
    )
}

#[test]
fn objects_come_change_and_go() {
    let mut fixture = Fixture::new(1);
    fixture.write(0, "a.yaml", &(service("a", 1) + &service("b", 2)));
    fixture.write(0, "notes.txt", "not: yaml: at: all");
    assert_eq!(fixture.first(), ["=a:1", "=b:2"]);
    assert_eq!(fixture.settled(), [""; 0]);
    fixture.write(
        0,
        "a.yaml",
        &(service("a", 1) + &service("b", 3) + &service("c", 4)),
    );
    assert_eq!(fixture.settled(), ["+b:3", "+c:4"]);
    fixture.write(0, "a.yaml", &service("b", 3));
    assert_eq!(fixture.settled(), ["-Service ns/a", "-Service ns/c"]);
    fs::remove_file(fixture.dirs[0].path().join("a.yaml")).unwrap();
    assert_eq!(summary(fixture.folders.look(false)), ["-Service ns/b"]);
}

#[test]
fn later_folders_win() {
    let mut fixture = Fixture::new(2);
    fixture.write(0, "a.yaml", &service("a", 1));
    fixture.write(1, "a.yaml", &service("a", 2));
    assert_eq!(fixture.first(), ["=a:2"]);
    fixture.write(0, "a.yaml", &service("a", 3));
    assert_eq!(fixture.settled(), [""; 0]);
    fs::remove_file(fixture.dirs[1].path().join("a.yaml")).unwrap();
    assert_eq!(summary(fixture.folders.look(false)), ["+a:3"]);
}

#[test]
fn the_last_good_version_of_a_broken_object_stays() {
    let mut fixture = Fixture::new(1);
    let server = |port: &str| {
        format!(
            "apiVersion: policy.linkerd.io/v1beta3\nkind: Server\nmetadata: {{name: s, namespace: ns}}\nspec: {{port: {port}}}\n---\n"
        )
    };
    fixture.write(
        0,
        "a.yaml",
        &(service("a", 1) + &server("80") + &service("b", 2)),
    );
    assert_eq!(fixture.first(), ["=a:1", "=b:2", "=Server ns/s"]);
    // The broken one stays, what is gone goes, what changed changes.
    fixture.write(0, "a.yaml", &(service("a", 3) + &server("true")));
    assert_eq!(fixture.settled(), ["-Service ns/b", "+a:3"]);
    assert_eq!(fixture.folders.broken.value(), 1);
    // A document that does not say whose it is may be any of those that are missing.
    fixture.write(0, "a.yaml", &(service("c", 4) + "kind: [\n"));
    assert_eq!(fixture.settled(), ["+c:4"]);
    fixture.write(0, "a.yaml", &service("c", 4));
    assert_eq!(fixture.settled(), ["-Service ns/a", "-Server ns/s"]);
    assert_eq!(fixture.folders.broken.value(), 0);
}

#[test]
fn an_unreadable_file_or_folder_keeps_what_it_said() {
    let mut fixture = Fixture::new(1);
    fixture.write(0, "a.yaml", &service("a", 1));
    assert_eq!(fixture.first(), ["=a:1"]);
    let path = fixture.dirs[0].path().join("a.yaml");
    fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    assert_eq!(fixture.settled(), [""; 0]);
    fs::remove_dir_all(fixture.dirs[0].path()).unwrap();
    assert_eq!(fixture.settled(), [""; 0]);
    fs::create_dir(fixture.dirs[0].path()).unwrap();
    fixture.write(0, "b.yaml", &service("b", 1));
    assert_eq!(summary(fixture.folders.look(false)), ["-Service ns/a"]);
    assert_eq!(summary(fixture.folders.look(false)), ["+b:1"]);
}

/// Half of the objects would be taken for all of them.
#[test]
fn nothing_is_sent_before_every_folder_has_been_read() {
    let mut fixture = Fixture::new(2);
    fixture.write(0, "a.yaml", &service("a", 1));
    let second = fixture.dirs[1].path().to_owned();
    fs::remove_dir(&second).unwrap();
    assert_eq!(fixture.first(), [""; 0]);
    assert_eq!(fixture.folders.broken.value(), 1);
    fs::create_dir(&second).unwrap();
    assert_eq!(fixture.first(), ["=a:1"]);
}
