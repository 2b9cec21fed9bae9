//! Whether reports are sent, and where to. The CronJob decides it, because the CronJob sends them.

use mesh_k8s::heartbeat::NAME;
use mesh_k8s::kinds::CronJob;
use mesh_k8s::values::Values;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "sending", rename_all = "camelCase")]
pub(super) enum Sending {
    On {
        url: String,
        /// A cron expression.
        schedule: String,
    },
    Off {
        reason: String,
        /// A command, or what to do.
        remedy: String,
    },
}

const UPGRADE: &str = "meshctl upgrade | kubectl apply -f -, or helm upgrade";

pub(super) fn of(values: &Values, cron_job: Option<&CronJob>) -> Sending {
    match cron_job {
        Some(cron_job) => of_cron_job(values, cron_job),
        None => without_cron_job(values),
    }
}

fn of_cron_job(values: &Values, cron_job: &CronJob) -> Sending {
    let namespace = &values.namespace;
    let spec = cron_job.spec.as_ref();
    if spec.is_some_and(|spec| spec.suspend == Some(true)) {
        return Sending::Off {
            reason: format!("CronJob {namespace}/{NAME} is suspended"),
            remedy: format!(
                "kubectl -n {namespace} patch cronjob {NAME} -p '{{\"spec\":{{\"suspend\":false}}}}'"
            ),
        };
    }
    match spec.zip(url(cron_job)) {
        Some((spec, url)) => Sending::On {
            url,
            schedule: spec.schedule.clone(),
        },
        None => Sending::Off {
            reason: format!("CronJob {namespace}/{NAME} has no argument --url"),
            remedy: UPGRADE.to_owned(),
        },
    }
}

/// Returns the URL in the arguments of the CronJob.
fn url(cron_job: &CronJob) -> Option<String> {
    let job = cron_job.spec.as_ref()?.job_template.spec.as_ref()?;
    let containers = &job.template.spec.as_ref()?.containers;
    let args = containers.iter().flat_map(|it| it.args.iter().flatten());
    let mut urls = args.filter_map(|arg| arg.strip_prefix("--url="));
    urls.next().map(str::to_owned)
}

fn without_cron_job(values: &Values) -> Sending {
    let (reason, remedy) = if values.heartbeat_url.is_empty() {
        (
            "the value heartbeatUrl is empty".to_owned(),
            "set it to a URL of yours: meshctl upgrade --set heartbeatUrl=https://reports.example.com/mesh | kubectl apply -f -".to_owned(),
        )
    } else if values.disable_heart_beat {
        (
            "the value disableHeartBeat is true".to_owned(),
            "meshctl upgrade --set disableHeartBeat=false | kubectl apply -f -".to_owned(),
        )
    } else {
        (
            format!("there is no CronJob {}/{NAME}", values.namespace),
            UPGRADE.to_owned(),
        )
    };
    Sending::Off { reason, remedy }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn values(given: Value) -> Values {
        Values::read(given).unwrap()
    }

    fn cron_job(suspend: bool, args: &[&str]) -> CronJob {
        let pod = json!({ "containers": [{ "name": "heartbeat", "args": args }] });
        let job = json!({ "spec": { "template": { "spec": pod } } });
        let spec = json!({ "schedule": "5 4 * * *", "suspend": suspend, "jobTemplate": job });
        serde_json::from_value(json!({ "spec": spec })).unwrap()
    }

    fn reason(sending: Sending) -> String {
        match sending {
            Sending::Off { reason, .. } => reason,
            Sending::On { url, .. } => panic!("sent to {url}"),
        }
    }

    #[test]
    fn cron_job_decides_where_reports_are_sent() {
        // It was not changed together with the values.
        let cron_job = cron_job(false, &["heartbeat", "--url=https://a.example"]);
        let on = Sending::On {
            url: "https://a.example".to_owned(),
            schedule: "5 4 * * *".to_owned(),
        };
        for given in [json!({}), json!({ "heartbeatUrl": "https://b.example" })] {
            assert_eq!(of(&values(given), Some(&cron_job)), on);
        }
    }

    #[test]
    fn reasons_name_what_is_missing() {
        let on = json!({ "heartbeatUrl": "https://a.example" });
        let disabled = json!({ "heartbeatUrl": "https://a.example", "disableHeartBeat": true });
        for (given, cron_job, expect) in [
            (json!({}), None, "the value heartbeatUrl is empty"),
            (disabled, None, "the value disableHeartBeat is true"),
            (
                on.clone(),
                None,
                "there is no CronJob linkerd/linkerd-heartbeat",
            ),
            (
                on.clone(),
                Some(cron_job(true, &["--url=https://a.example"])),
                "CronJob linkerd/linkerd-heartbeat is suspended",
            ),
            (
                on,
                Some(cron_job(false, &["heartbeat"])),
                "CronJob linkerd/linkerd-heartbeat has no argument --url",
            ),
        ] {
            let sending = of(&values(given), cron_job.as_ref());
            assert_eq!(reason(sending), expect);
        }
    }
}
