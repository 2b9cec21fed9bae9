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

    #[track_caller]
    fn assert_files(&self, expected: &[(&str, &str)]) {
        let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        assert_eq!(self.files(), expected.iter().map(owned).collect::<Vec<_>>());
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
    node.assert_files(&files);
    // A check after the removal restores nothing.
    assert!(!node.ensure_chained().status.chained);
    node.assert_files(&files);
}

#[test]
fn changes_of_other_programs_are_repaired_or_reported() {
    let node = Node::new(&[("10-bridge.conflist", BRIDGE)]);
    node.meshed();
    node.write("10-bridge.conflist", BRIDGE);
    let (_, written, _) = node.meshed();
    assert_eq!(written, some("10-bridge.conflist"), "rewritten");

    node.write("05-cilium.conflist", CILIUM);
    let first = some("05-cilium.conflist");
    assert_eq!(node.meshed(), (first.clone(), first, vec![]), "outranked");

    let backup = "10-bridge.conflist.cilium_bak";
    fs::rename(node.path("10-bridge.conflist"), node.path(backup)).unwrap();
    let (_, _, notes) = node.meshed();
    let moved = "was chained into to 10-bridge.conflist.cilium_bak; Cilium does so";
    assert!(notes[0].contains(moved), "{notes:?}");

    node.remove();
    node.assert_files(&[("05-cilium.conflist", CILIUM), (backup, BRIDGE)]);
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
    let plugins = node.ensure_chained().status.plugins;
    assert_eq!(plugins, ["macvlan", "mesh-cni"]);

    node.remove();
    node.assert_files(&[("10-one.conf", newer.as_str()), ("10-one.conflist", BRIDGE)]);

    // Rewritten just before the removal: the newer file stays.
    let node = Node::new(&[("10-one.conf", SINGLE), ("10-one.conflist", BRIDGE)]);
    node.meshed();
    node.write("10-one.conf", SINGLE);
    node.remove();
    node.assert_files(&[("10-one.conf", SINGLE), ("10-one.conflist", BRIDGE)]);
}

#[test]
fn unusable_files_are_skipped_and_named() {
    let node = Node::new(&[]);
    let reason = node.ensure_chained().status.reason;
    let none = "there is no network configuration yet";
    assert!(reason.starts_with(none), "{reason}");
    assert_eq!(node.files(), []);

    node.write("10-half.conflist", &BRIDGE[..40]);
    let loopback = r#"{"cniVersion":"1.0.0","name":"lo","type":"loopback"}"#;
    node.write("99-loopback.conf", loopback);
    let status = node.ensure_chained().status;
    assert!(!status.chained && status.file.is_none(), "{status:?}");
    for problem in [
        "10-half.conflist: not a JSON CNI configuration",
        "99-loopback.conf: the configuration lists no plugin that creates a network",
    ] {
        assert!(status.reason.contains(problem), "{}", status.reason);
    }
    assert_eq!(node.files().len(), 2, "no file was created");

    node.write("20-bridge.conflist", BRIDGE);
    assert_eq!(node.meshed().0, some("20-bridge.conflist"));
    let linkerd = CILIUM.replace("cilium-cni", "linkerd-cni");
    node.write("30-old.conflist", &linkerd);
    let (_, _, notes) = node.meshed();
    let too = "linkerd-cni is chained in 30-old.conflist too";
    assert!(notes[0].contains(too), "{notes:?}");
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
    let hint = "it belongs in the directory of mesh-agent";
    assert!(error.ends_with(hint), "{error}");
}
