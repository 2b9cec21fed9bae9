//! Files that are created, changed, invalid and deleted.

use std::fs;

use super::*;

struct Fixture {
    dirs: Vec<tempfile::TempDir>,
    directories: DirectorySource,
}

impl Fixture {
    fn new(count: usize) -> Self {
        let dirs: Vec<_> = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
        let paths = dirs.iter().map(|dir| dir.path().to_owned()).collect();
        Self {
            dirs,
            directories: DirectorySource::new(paths, Kind::ALL.to_vec(), &Registry::new()),
        }
    }

    /// Writes a draft and renames it, so that every version has its own inode.
    fn write(&self, dir: usize, name: &str, text: &str) {
        let dir = self.dirs[dir].path();
        fs::write(dir.join(".draft"), text).unwrap();
        fs::rename(dir.join(".draft"), dir.join(name)).unwrap();
    }

    fn first(&mut self) -> Vec<String> {
        summary(self.directories.scan(true))
    }

    /// Polls twice, because a change counts only in the second poll.
    fn settled(&mut self) -> Vec<String> {
        assert_eq!(summary(self.directories.scan(false)), [""; 0]);
        summary(self.directories.scan(false))
    }
}

fn summary(batch: Batch) -> Vec<String> {
    batch
        .into_iter()
        .flat_map(|change| match change {
            Change::Apply(object) => vec![format!("+{}", describe(&object))],
            Change::Delete(key) => vec![format!("-{key}")],
            Change::Replace(objects) => objects
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
fn objects_follow_files() {
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
    assert_eq!(summary(fixture.directories.scan(false)), ["-Service ns/b"]);
}

#[test]
fn later_directories_take_precedence() {
    let mut fixture = Fixture::new(2);
    fixture.write(0, "a.yaml", &service("a", 1));
    fixture.write(1, "a.yaml", &service("a", 2));
    assert_eq!(fixture.first(), ["=a:2"]);
    fixture.write(0, "a.yaml", &service("a", 3));
    assert_eq!(fixture.settled(), [""; 0]);
    fs::remove_file(fixture.dirs[1].path().join("a.yaml")).unwrap();
    assert_eq!(summary(fixture.directories.scan(false)), ["+a:3"]);
}

#[test]
fn last_valid_version_of_invalid_object_stays() {
    let mut fixture = Fixture::new(1);
    let server = |port: &str| {
        format!(
            "apiVersion: policy.linkerd.io/v1beta3\nkind: Server\nmetadata: {{name: s, namespace: ns}}\nspec: {{podSelector: {{}}, port: {port}}}\n---\n"
        )
    };
    fixture.write(
        0,
        "a.yaml",
        &(service("a", 1) + &server("80") + &service("b", 2)),
    );
    assert_eq!(fixture.first(), ["=a:1", "=b:2", "=Server ns/s"]);
    // The invalid object stays, the others are deleted and changed.
    fixture.write(0, "a.yaml", &(service("a", 3) + &server("true")));
    assert_eq!(fixture.settled(), ["-Service ns/b", "+a:3"]);
    assert_eq!(fixture.directories.invalid.value(), 1);
    // A document without a name may be any missing object.
    fixture.write(0, "a.yaml", &(service("c", 4) + "kind: [\n"));
    assert_eq!(fixture.settled(), ["+c:4"]);
    fixture.write(0, "a.yaml", &service("c", 4));
    assert_eq!(fixture.settled(), ["-Service ns/a", "-Server ns/s"]);
    assert_eq!(fixture.directories.invalid.value(), 0);
}

#[test]
fn objects_of_unreadable_file_or_directory_stay() {
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
    assert_eq!(summary(fixture.directories.scan(false)), ["-Service ns/a"]);
    assert_eq!(summary(fixture.directories.scan(false)), ["+b:1"]);
}

#[test]
fn first_batch_waits_for_all_directories() {
    let mut fixture = Fixture::new(2);
    fixture.write(0, "a.yaml", &service("a", 1));
    let second = fixture.dirs[1].path().to_owned();
    fs::remove_dir(&second).unwrap();
    assert_eq!(fixture.first(), [""; 0]);
    assert_eq!(fixture.directories.invalid.value(), 1);
    fs::create_dir(&second).unwrap();
    assert_eq!(fixture.first(), ["=a:1"]);
}
