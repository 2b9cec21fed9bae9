//! The installer with a CNI configuration directory of a node, in a temporary directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;

const BRIDGE: &str = r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge"}]}"#;
const CILIUM: &str = r#"{"cniVersion":"0.3.1","name":"cilium","plugins":[{"type":"cilium-cni"}]}"#;
const SINGLE: &str = r#"{"cniVersion":"0.4.0","name":"one","type":"ptp"}"#;

struct Node {
    dir: TempDir,
    installer: Installer,
}

impl Node {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("net.d")).unwrap();
        fs::create_dir(path("bin")).unwrap();
        fs::write(path("mesh-cni"), "program").unwrap();
        let installer = Installer::new(Settings {
            conf_dir: path("net.d"),
            bin_dir: path("bin"),
            plugin: path("mesh-cni"),
            socket: "/run/mesh/agent.sock".into(),
            pin_dir: "/sys/fs/bpf/mesh".into(),
            state_dir: "/run/mesh".into(),
        });
        let node = Self { dir, installer };
        for (name, text) in files {
            node.write(name, text);
        }
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("net.d").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn files(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(self.path("")).unwrap();
        let mut files: Vec<(String, String)> = entries
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                (name, fs::read_to_string(path).unwrap())
            })
            .collect();
        files.sort();
        files
    }

    fn ensure_chained(&self) -> ChainReport {
        self.installer.ensure_chained().unwrap()
    }

    /// Ensures the chain, and returns the file with the entry, the written file and the notes.
    fn meshed(&self) -> (Option<String>, Option<String>, Vec<String>) {
        let report = self.ensure_chained();
        assert!(report.status.chained, "{report:?}");
        assert_eq!(report.status.plugins.last().unwrap(), "mesh-cni");
        (report.status.file, report.written, report.notes)
    }

    fn remove(&self) {
        let errors = self.installer.remove_entries();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

fn some(name: &str) -> Option<String> {
    Some(name.to_owned())
}

#[test]
fn first_file_is_chained_once_and_restored_on_removal() {
    let files = [
        ("00-readme.txt", "no configuration"),
        ("10-bridge.conflist", BRIDGE),
        ("20-other.conflist", CILIUM),
    ];
    let node = Node::new(&files);
    let mode = fs::Permissions::from_mode(0o640);
    fs::set_permissions(node.path("10-bridge.conflist"), mode).unwrap();
    let name = "10-bridge.conflist";
    assert_eq!(node.meshed(), (some(name), some(name), vec![]));
    assert_eq!(node.meshed(), (some(name), None, vec![]));
    let mode = fs::metadata(node.path(name)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let text = &node.files()[1].1;
    for part in [
        r#""socket":"/run/mesh/agent.sock""#,
        r#""pinDir":"/sys/fs/bpf/mesh""#,
        r#""stateDir":"/run/mesh""#,
        r#""capabilities":{"io.kubernetes.cri.pod-annotations":true}"#,
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    node.remove();
    let before = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(node.files(), before);
    assert!(
        !node.ensure_chained().status.chained,
        "a check after the removal restores nothing"
    );
    assert_eq!(node.files(), before);
}

#[test]
fn changes_of_other_programs_are_repaired_or_reported() {
    let node = Node::new(&[("10-bridge.conflist", BRIDGE)]);
    node.meshed();
    node.write("10-bridge.conflist", BRIDGE);
    let (_, written, _) = node.meshed();
    assert_eq!(written, some("10-bridge.conflist"), "rewritten");

    node.write("05-cilium.conflist", CILIUM);
    let (file, written, notes) = node.meshed();
    assert_eq!(
        (file, written),
        (some("05-cilium.conflist"), some("05-cilium.conflist")),
        "outranked"
    );
    assert_eq!(notes, Vec::<String>::new());

    let backup = "10-bridge.conflist.cilium_bak";
    fs::rename(node.path("10-bridge.conflist"), node.path(backup)).unwrap();
    let (_, _, notes) = node.meshed();
    assert!(
        notes[0].contains("was chained into to 10-bridge.conflist.cilium_bak; Cilium does so"),
        "{notes:?}"
    );

    node.remove();
    let expected = [("05-cilium.conflist", CILIUM), (backup, BRIDGE)];
    assert_eq!(
        node.files(),
        expected.map(|(name, text)| (name.to_owned(), text.to_owned()))
    );
}

#[test]
fn single_plugin_is_replaced_by_list_and_restored() {
    let node = Node::new(&[("10-one.conf", SINGLE), ("10-one.conflist", BRIDGE)]);
    let list = "10-one.conf.conflist";
    assert_eq!(node.meshed(), (some(list), some(list), vec![]));
    assert_eq!(node.meshed(), (some(list), None, vec![]));
    let names: Vec<String> = node.files().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["10-one.conf.before-mesh", list, "10-one.conflist"]);

    // The owner rewrites its file.
    let newer = SINGLE.replace("ptp", "macvlan");
    node.write("10-one.conf", &newer);
    assert_eq!(node.meshed(), (some(list), some(list), vec![]));
    assert_eq!(
        node.ensure_chained().status.plugins,
        ["macvlan", "mesh-cni"]
    );

    node.remove();
    let expected = [("10-one.conf", newer.as_str()), ("10-one.conflist", BRIDGE)];
    assert_eq!(
        node.files(),
        expected.map(|(name, text)| (name.to_owned(), text.to_owned()))
    );

    // Rewritten just before the removal: the newer file stays.
    let node = Node::new(&[("10-one.conf", SINGLE), ("10-one.conflist", BRIDGE)]);
    node.meshed();
    node.write("10-one.conf", SINGLE);
    node.remove();
    assert_eq!(
        node.files()[0],
        ("10-one.conf".to_owned(), SINGLE.to_owned())
    );
    assert_eq!(node.files().len(), 2);
}

#[test]
fn unusable_files_are_skipped_and_named() {
    let node = Node::new(&[]);
    let reason = node.ensure_chained().status.reason;
    assert!(
        reason.starts_with("there is no network configuration yet"),
        "{reason}"
    );
    assert_eq!(node.files(), []);

    node.write("10-half.conflist", &BRIDGE[..40]);
    node.write(
        "99-loopback.conf",
        r#"{"cniVersion":"1.0.0","name":"lo","type":"loopback"}"#,
    );
    let report = node.ensure_chained();
    assert!(
        !report.status.chained && report.status.file.is_none(),
        "{report:?}"
    );
    let reason = report.status.reason;
    assert!(
        reason.contains("10-half.conflist: not a JSON CNI configuration"),
        "{reason}"
    );
    assert!(
        reason
            .contains("99-loopback.conf: the configuration lists no plugin that creates a network"),
        "{reason}"
    );
    assert_eq!(node.files().len(), 2, "no file was created");

    node.write("20-bridge.conflist", BRIDGE);
    assert_eq!(node.meshed().0, some("20-bridge.conflist"));
    node.write(
        "30-old.conflist",
        &CILIUM.replace("cilium-cni", "linkerd-cni"),
    );
    let (_, _, notes) = node.meshed();
    assert!(
        notes[0].contains("linkerd-cni is chained in 30-old.conflist too"),
        "{notes:?}"
    );
}

#[test]
fn symbolic_link_stays_and_its_target_is_replaced() {
    let node = Node::new(&[]);
    let target = node.dir.path().join("elsewhere.conflist");
    fs::write(&target, BRIDGE).unwrap();
    std::os::unix::fs::symlink(&target, node.path("10-link.conflist")).unwrap();
    std::os::unix::fs::symlink("/nonexistent", node.path("05-nowhere.conflist")).unwrap();
    assert_eq!(node.meshed().0, some("10-link.conflist"));
    assert!(node.path("10-link.conflist").is_symlink());
    assert!(fs::read_to_string(&target).unwrap().contains("mesh-cni"));
}

#[test]
fn program_is_installed_when_missing_altered_or_not_executable() {
    let node = Node::new(&[]);
    let installed = node.dir.path().join("bin/mesh-cni");
    let install = |compare_content| node.installer.install_plugin(compare_content).unwrap();
    let mode = || fs::metadata(&installed).unwrap().permissions().mode() & 0o777;
    assert_eq!(install(true), PluginFile::Missing);
    assert_eq!(fs::read_to_string(&installed).unwrap(), "program");
    assert_eq!(mode(), 0o755);
    assert_eq!(install(true), PluginFile::Intact);
    fs::write(&installed, "progrbm").unwrap();
    assert_eq!(install(false), PluginFile::Intact, "same length");
    assert_eq!(install(true), PluginFile::Altered);
    fs::write(&installed, "older").unwrap();
    assert_eq!(install(false), PluginFile::Altered);
    fs::remove_file(&installed).unwrap();
    assert_eq!(install(false), PluginFile::Missing);

    // Without execute permission the runtime could start no pod.
    for lost in [0o644, 0o600, 0o000] {
        fs::set_permissions(&installed, fs::Permissions::from_mode(lost)).unwrap();
        assert_eq!(install(false), PluginFile::NotExecutable, "{lost:o}");
        assert_eq!(mode(), 0o755);
    }
    // A stricter mode of an administrator stays.
    fs::set_permissions(&installed, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(install(true), PluginFile::Intact);
    assert_eq!(mode(), 0o700);
    node.installer.remove_plugin().unwrap();
    node.installer.remove_plugin().unwrap();
    assert!(!installed.exists());

    fs::remove_file(node.dir.path().join("mesh-cni")).unwrap();
    let error = node.installer.install_plugin(true).unwrap_err().to_string();
    assert!(
        error.ends_with("it belongs in the directory of mesh-agent"),
        "{error}"
    );
}
