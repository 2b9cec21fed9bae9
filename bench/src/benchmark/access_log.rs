//! Compares requests with and without an access log in JSON.
//!
//! The log goes to a pipe that a program reads, as a container runtime does. When the pipe is full,
//! the proxy drops entries. Dropped entries cost nothing, so the fraction written is reported too.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::Run;
use super::load::Outcome;
use super::metric::Metric;
use super::row::{Row, Sample};
use super::system::System;
use super::with_and_without::{Feature, Variant, compare, restart};
use super::workload::Load;
use crate::testbed::pod::{Container, CpuRole};
use crate::testbed::process::{Process, run as run_command};
use crate::testbed::proxies::{self, ProxySettings};
use crate::testbed::{DIRECTORY, Testbed};

const READER: Container<'_> = Container::root("log-reader", CpuRole::Load);
const JSON: (&str, &str) = ("LINKERD2_PROXY_ACCESS_LOG", "json");
const LOAD: Load = Load::Wrk { connections: 64 };
const DROPPED: &str = "mesh_access_log_dropped_total";

struct AccessLog<'r> {
    run: Run<'r>,
    pipe: PathBuf,
    reader: Option<Process>,
}

pub(super) fn row(run: Run<'_>) -> anyhow::Result<Row> {
    let pipe = Path::new(DIRECTORY).join("access-log");
    // Every user may write, since the proxy has its own.
    run_command(Command::new("mkfifo").args(["-m", "666"]).arg(&pipe))?;
    let reader = None;
    compare(run, AccessLog { run, pipe, reader })
}

impl Feature for AccessLog<'_> {
    fn load(&self, _: Variant) -> Load {
        LOAD
    }

    fn start(&mut self, system: &mut System, variant: Variant) -> anyhow::Result<()> {
        let mut settings = ProxySettings::default();
        if variant == Variant::With {
            settings.environment.push(JSON);
            settings.log_pipe = Some(self.pipe.clone());
            self.reader = Some(start_reader(self.run.testbed, system, &self.pipe)?);
        }
        restart(self.run, system, &settings, LOAD)
    }

    fn finish(
        &mut self,
        system: &mut System,
        variant: Variant,
        _: &Outcome,
        sample: &mut Sample,
    ) -> anyhow::Result<()> {
        if variant == Variant::Without {
            return Ok(());
        }
        let metrics = proxies::metrics(&system.pods.server)?;
        let dropped = proxies::counter(&metrics, DROPPED)
            .with_context(|| format!("the proxy's metrics lack {DROPPED}"))?;
        // The pipe ends with the proxy, and with it the reader.
        system.stop_proxies();
        let reader = self.reader.take().context("a program reads the log")?;
        let lines = reader.output()?;
        let lines: f64 = lines.trim().parse().context("parse the number of lines")?;
        sample.insert(Metric::Logged, lines / (lines + dropped));
        Ok(())
    }
}

/// Starts a program that reads the pipe and finally prints the number of lines. The few lines that
/// are not of the access log do not matter.
fn start_reader(testbed: &Testbed, system: &System, pipe: &Path) -> anyhow::Result<Process> {
    testbed.check_interrupt()?;
    let pod = &system.pods.server;
    let mut command = pod.command(READER, "sh")?;
    command.args(["-c", "exec wc -l < \"$0\""]).arg(pipe);
    Process::start(&format!("{}-log-reader", pod.name), &mut command)
}
