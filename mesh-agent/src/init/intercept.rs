//! `linkerd2-proxy-init`: redirects its own pod, once, before the other containers start.
//!
//! The rules are the same as in the nft and iptables tiers (module `rules`); the eBPF tiers need an
//! agent. The mode `nft` needs no programs of the image; `legacy` and `plain` run its `iptables`
//! programs, if it has them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{ArgAction, Parser};
use ipnet::IpNet;
use mesh_core::ports::PortSet;
use mesh_core::units;
use mesh_runtime::log::Format;

use super::{VERSION, start_log};
use crate::iptables;
use crate::nft::{self, Table};
use crate::redirect::RedirectSpec;
use crate::rules::{Directions, Rules};
use crate::sys::{capability, netns};

/// How long connection tracking keeps half-closed connections, per network namespace.
const CLOSE_WAIT_SYSCTL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";

/// Redirects the TCP connections of the pod it runs in to the pod's proxy.
#[derive(Debug, Parser)]
#[command(name = "linkerd2-proxy-init", version = VERSION.as_str(), max_term_width = 100)]
pub(super) struct Args {
    /// Port of the proxy's inbound listener
    #[arg(short = 'p', long, value_parser = clap::value_parser!(u16).range(1..))]
    incoming_proxy_port: u16,
    /// Port of the proxy's outbound listener
    #[arg(short = 'o', long, value_parser = clap::value_parser!(u16).range(1..))]
    outgoing_proxy_port: u16,
    /// User of the proxy, whose own connections are not redirected; 0 or less for none
    #[arg(short = 'u', long, default_value = "-1", allow_negative_numbers = true)]
    proxy_uid: i64,
    /// Group of the proxy, whose own connections are not redirected; 0 or less for none
    #[arg(short = 'g', long, default_value = "-1", allow_negative_numbers = true)]
    proxy_gid: i64,
    /// Ports to redirect inbound; all if empty
    #[arg(short = 'r', long, value_delimiter = ',')]
    ports_to_redirect: Vec<String>,
    /// Local ports whose inbound connections are not redirected, ranges included
    #[arg(long, value_delimiter = ',')]
    inbound_ports_to_ignore: Vec<String>,
    /// Destination ports whose outbound connections are not redirected, ranges included
    #[arg(long, value_delimiter = ',')]
    outbound_ports_to_ignore: Vec<String>,
    /// Sources whose inbound connections are not redirected
    #[arg(long, value_delimiter = ',')]
    subnets_to_ignore: Vec<String>,
    /// Print the rules and change nothing
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = parse_bool)]
    simulate: bool,
    /// Redirect this network namespace instead of the program's own
    #[arg(long, value_name = "PATH")]
    netns: Option<PathBuf>,
    /// Accepted for compatibility: the program always waits for the lock of the iptables programs
    #[arg(short = 'w', long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = parse_bool)]
    use_wait_flag: bool,
    /// Seconds that connection tracking keeps a half-closed connection; 0 keeps the kernel's
    /// default (requires root)
    #[arg(long, default_value_t = 0)]
    timeout_close_wait_secs: u32,
    /// Log format
    #[arg(long, value_name = "plain|json", default_value = "plain")]
    log_format: Format,
    /// Least severity that is logged
    #[arg(long, default_value = "info", value_parser = parse_level)]
    log_level: String,
    /// How rules are written: by netlink (nft), or by the iptables programs (legacy, plain)
    #[arg(long, value_name = "nft|legacy|plain")]
    iptables_mode: Option<Mode>,
    /// Redirect IPv6 too; without, it passes the proxy
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set, value_parser = parse_bool)]
    ipv6: bool,
    /// Older form of --iptables-mode: a name that contains "nft" selects nft
    #[arg(long, hide = true, default_value = "")]
    firewall_bin_path: String,
    /// Used with --firewall-bin-path
    #[arg(long, hide = true, default_value = "")]
    firewall_save_bin_path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    Nft,
    Legacy,
    Plain,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    start_log(&args.log_level, args.log_format)?;
    let rules = rules(args)?;
    let mode = mode(args);
    if args.simulate {
        return print(&rules, mode);
    }
    capability::raise_net_admin().context("cannot use the capability NET_ADMIN")?;
    match &args.netns {
        None => apply(&rules, mode, args.timeout_close_wait_secs),
        Some(path) => {
            let namespace = netns::open(path)?;
            netns::run_in(namespace, || {
                apply(&rules, mode, args.timeout_close_wait_secs)
            })?
        }
    }
}

fn apply(rules: &Rules, mode: Mode, close_wait: u32) -> anyhow::Result<()> {
    match mode {
        Mode::Nft => Table::open()
            .and_then(|mut table| table.replace(rules))
            .context("cannot redirect the pod (it takes the capability NET_ADMIN and a kernel with nf_tables NAT)")?,
        Mode::Legacy | Mode::Plain => iptables::replace(rules).context(
            "cannot redirect the pod with the iptables programs; proxyInit.iptablesMode=nft needs none",
        )?,
    }
    // After the rules: the sysctl exists once connection tracking is in use.
    if close_wait > 0 {
        fs::write(CLOSE_WAIT_SYSCTL, close_wait.to_string()).with_context(|| {
            format!("cannot write {CLOSE_WAIT_SYSCTL} (it takes root and a privileged container)")
        })?;
    }
    tracing::info!(mode = ?mode, "Redirected the pod's connections");
    Ok(())
}

fn print(rules: &Rules, mode: Mode) -> anyhow::Result<()> {
    use std::io::Write;
    let text = match mode {
        Mode::Nft => nft::script(rules),
        Mode::Legacy | Mode::Plain => iptables::script(rules),
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("cannot print the rules")
}

fn mode(args: &Args) -> Mode {
    args.iptables_mode.unwrap_or_else(|| {
        // Linkerd's chart sets no program for legacy.
        if args.firewall_bin_path.contains("nft") {
            Mode::Nft
        } else {
            Mode::Legacy
        }
    })
}

fn rules(args: &Args) -> anyhow::Result<Rules> {
    let spec = RedirectSpec {
        proxy_uid: owner(args.proxy_uid, "--proxy-uid")?.unwrap_or(0),
        proxy_gid: owner(args.proxy_gid, "--proxy-gid")?,
        inbound_port: args.incoming_proxy_port,
        outbound_port: args.outgoing_proxy_port,
        // The caller lists them in --inbound-ports-to-ignore.
        admin_port: 0,
        control_port: 0,
        skip_inbound: ports(&args.inbound_ports_to_ignore).context("--inbound-ports-to-ignore")?,
        skip_outbound: ports(&args.outbound_ports_to_ignore)
            .context("--outbound-ports-to-ignore")?,
        skip_subnets: subnets(&args.subnets_to_ignore)?,
        ipv6: args.ipv6,
        inbound_fail_open: false,
    };
    if spec.proxy_uid == 0 && spec.proxy_gid.is_none() {
        tracing::warn!(
            "Neither --proxy-uid nor --proxy-gid is set: the proxy's own connections will be redirected to it"
        );
    }
    let only = ports(&args.ports_to_redirect).context("--ports-to-redirect")?;
    let mut rules = Rules::new(&spec, Directions::Both);
    if !only.is_empty() {
        rules.redirect_inbound_only(&only, spec.inbound_port);
    }
    Ok(rules)
}

fn owner(id: i64, flag: &str) -> anyhow::Result<Option<u32>> {
    if id <= 0 {
        return Ok(None);
    }
    let id = u32::try_from(id).ok().filter(|id| *id < u32::MAX);
    ensure!(id.is_some(), "{flag} is not a valid user or group id");
    Ok(id)
}

fn ports(items: &[String]) -> anyhow::Result<PortSet> {
    let mut set = PortSet::default();
    for item in items.iter().filter(|item| !item.trim().is_empty()) {
        set.insert(PortSet::parse_item(item)?);
    }
    Ok(set)
}

fn subnets(items: &[String]) -> anyhow::Result<Vec<IpNet>> {
    items
        .iter()
        .map(|item| item.trim())
        .filter(|item| !item.is_empty())
        .map(|item| {
            item.parse().with_context(|| {
                format!(
                    "--subnets-to-ignore: {item:?} is not a valid subnet; write it like 10.0.0.0/8"
                )
            })
        })
        .collect()
}

/// Parses a boolean flag as Go's command-line parser does.
fn parse_bool(text: &str) -> Result<bool, String> {
    units::parse_bool(text).ok_or_else(|| "write true or false".to_owned())
}

/// Maps level names of logrus, which Linkerd's program uses, to this program's.
fn parse_level(text: &str) -> Result<String, String> {
    let level = match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => "error",
        "warn" | "warning" => "warn",
        "info" => "info",
        "debug" => "debug",
        "trace" => "trace",
        _ => return Err("choose error, warn, info, debug or trace".to_owned()),
    };
    Ok(level.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHART: [&str; 15] = [
        "linkerd2-proxy-init",
        "--firewall-bin-path",
        "iptables-nft",
        "--firewall-save-bin-path",
        "iptables-nft-save",
        "--ipv6=false",
        "--incoming-proxy-port",
        "4143",
        "--outgoing-proxy-port",
        "4140",
        "--proxy-uid",
        "2102",
        "--inbound-ports-to-ignore",
        "4190,4191,4567,4568",
        "--outbound-ports-to-ignore=4567,4568",
    ];

    fn outbound(args: &Args) -> Vec<String> {
        let rules = rules(args).unwrap().outbound.unwrap();
        rules.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn arguments_of_the_chart_are_parsed() {
        let args = Args::parse_from(CHART);
        assert_eq!(mode(&args), Mode::Nft);
        assert_eq!(
            outbound(&args),
            [
                "IPv6",
                "check address 192.0.2.1 to the proxy, port 4140",
                "check address 2001:db8::1 to the proxy, port 4140",
                "proxy user 2102",
                "loopback",
                "skip ports 4567-4568",
                "everything else to the proxy, port 4140",
            ]
        );
    }

    #[test]
    fn modes_levels_and_lists_are_parsed() {
        let with = |more: &[&str]| {
            let base = ["linkerd2-proxy-init", "-p", "4143", "-o", "4140"];
            Args::try_parse_from(base.iter().chain(more))
        };
        let parsed = |more: &[&str]| with(more).unwrap();
        assert_eq!(mode(&parsed(&[])), Mode::Legacy);
        assert_eq!(mode(&parsed(&["--iptables-mode", "nft"])), Mode::Nft);
        assert_eq!(mode(&parsed(&["--iptables-mode=plain"])), Mode::Plain);
        assert!(parsed(&["-w", "--simulate"]).simulate);
        assert!(!parsed(&["--simulate=false"]).simulate);
        assert_eq!(parsed(&["--log-level", "Warning"]).log_level, "warn");
        assert_eq!(parsed(&["-u", "-1", "--proxy-gid=-1"]).proxy_uid, -1);
        let listed = parsed(&[
            "-r",
            "80,443",
            "--subnets-to-ignore",
            "10.0.0.0/8, fd00::/8",
        ]);
        let inbound: Vec<String> = rules(&listed)
            .unwrap()
            .inbound
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            inbound,
            [
                "skip source 10.0.0.0/8",
                "skip source fd00::/8",
                "port 80 to the proxy, port 4143",
                "port 443 to the proxy, port 4143",
            ]
        );
        for invalid in [
            &["--iptables-mode", "ebpf"][..],
            &["--log-level", "loud"],
            &["--incoming-proxy-port", "0"],
            &["--unknown"],
        ] {
            assert!(with(invalid).is_err(), "{invalid:?}");
        }
        for invalid in ["--subnets-to-ignore=10/8", "--inbound-ports-to-ignore=http"] {
            assert!(rules(&parsed(&[invalid])).is_err(), "{invalid}");
        }
    }
}
