//! Whether reports of the installation are sent as the values say.

use mesh_k8s::heartbeat::NAME;
use mesh_k8s::kinds::{CronJob, ResourceExt};

use super::super::framework::{CheckResult, Finding, Outcome};
use crate::facts::{Facts, fact_ref};

/// Nothing depends on reports, so that all findings are warnings.
pub(super) fn cron_job(facts: &Facts) -> CheckResult {
    let values = facts.values()?;
    let receiver = values.heartbeat_receiver();
    let cron_jobs = fact_ref(&facts.objects.cron_jobs)?;
    let cron_job = cron_jobs.iter().find(|object| object.name_any() == NAME);
    Ok(match (receiver, cron_job) {
        (None, None) => Outcome::ok("no reports"),
        (None, Some(_)) => Outcome::warn(
            Finding::new(format!(
                "CronJob {NAME} sends reports, but heartbeatUrl is empty or disableHeartBeat is true"
            ))
            .with_fix(format!("kubectl -n {{ns}} delete cronjob {NAME}")),
        ),
        (Some(url), None) => Outcome::warn(
            Finding::new(format!("no reports are sent to {url}: CronJob {NAME} is missing"))
                .with_fix("{upgrade}"),
        ),
        (Some(url), Some(cron_job)) if has_failed(cron_job) => Outcome::warn(
            Finding::new(format!("the last report to {url} was not accepted")).with_fix(format!(
                "kubectl -n {{ns}} create job --from=cronjob/{NAME} {NAME}-now; kubectl -n {{ns}} logs job/{NAME}-now shows the reason"
            )),
        ),
        (Some(url), Some(_)) => Outcome::ok(url),
    })
}

/// Returns whether the last run has ended without a success.
fn has_failed(cron_job: &CronJob) -> bool {
    let Some(status) = &cron_job.status else {
        return false;
    };
    let runs = status.active.as_ref().is_some_and(|jobs| !jobs.is_empty());
    let scheduled = status.last_schedule_time.as_ref();
    let succeeded = status.last_successful_time.as_ref();
    let is_late = scheduled
        .is_some_and(|scheduled| succeeded.is_none_or(|succeeded| succeeded.0 < scheduled.0));
    is_late && !runs
}
