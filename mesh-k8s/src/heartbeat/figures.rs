//! The figures of a report that Prometheus has, with Linkerd's queries.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mesh_core::annotation::VIZ;

use super::{Absence, Parameter, extension};

/// A figure that a query of Prometheus returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The name of its parameter.
    pub name: String,
    /// An instant query with a single sample.
    pub query: String,
    decimals: usize,
    meaning: &'static str,
}

/// A container whose memory and CPU are reported, with the meanings of the two parameters.
struct MeasuredContainer<'a> {
    name: &'static str,
    /// `None` for all namespaces.
    namespace: Option<&'a str>,
    memory: &'static str,
    cpu: &'static str,
}

/// Returns the figures of an installation. Figures of the viz extension's Prometheus are among them
/// only if `extensions` has the extension's namespace.
pub fn figures(control_namespace: &str, extensions: &[ObjectMeta]) -> Vec<Figure> {
    let figure = |name: &str, query: &str, meaning| Figure {
        name: name.to_owned(),
        query: query.to_owned(),
        decimals: 0,
        meaning,
    };
    let mut figures = vec![
        figure(
            "total-rps",
            r#"sum(rate(request_total{direction="inbound", job="linkerd-proxy"}[30s]))"#,
            "requests per second that proxies receive",
        ),
        figure(
            "meshed-pods",
            r#"count(count by (pod) (request_total{job="linkerd-proxy"}))"#,
            "meshed pods with requests",
        ),
        figure(
            "p99-handle-us",
            r#"histogram_quantile(0.99, sum(rate(request_handle_us_bucket{job="linkerd-proxy"}[24h])) by (le))"#,
            "99th percentile of the time that proxies need for a request, in microseconds",
        ),
        figure(
            "proxy-injector-injections",
            r#"sum(proxy_inject_admission_responses_total{job="linkerd-controller", skip="false"})"#,
            "pods that the injector added a proxy to",
        ),
    ];
    for container in containers(control_namespace, extensions) {
        figures.extend(container.figures());
    }
    figures
}

fn containers<'a>(
    control_namespace: &'a str,
    extensions: &'a [ObjectMeta],
) -> Vec<MeasuredContainer<'a>> {
    let mut containers = vec![
        MeasuredContainer {
            name: "linkerd-proxy",
            namespace: None,
            memory: "memory of the largest proxy, in bytes",
            cpu: "95th percentile of the busiest proxy's CPU in a day, in cores",
        },
        MeasuredContainer {
            name: "destination",
            namespace: Some(control_namespace),
            memory: "memory of the largest destination service, in bytes",
            cpu: "95th percentile of the busiest destination service's CPU in a day, in cores",
        },
    ];
    let viz = extensions
        .iter()
        .find(|namespace| extension(namespace) == Some(VIZ));
    if let Some(namespace) = viz.and_then(|namespace| namespace.name.as_deref()) {
        containers.push(MeasuredContainer {
            name: "prometheus",
            namespace: Some(namespace),
            memory: "memory of the viz extension's Prometheus, in bytes",
            cpu: "95th percentile of that Prometheus' CPU in a day, in cores",
        });
    }
    containers
}

impl MeasuredContainer<'_> {
    fn figures(&self) -> [Figure; 2] {
        let labels = self.labels();
        [
            Figure {
                name: format!("max-mem-{}", self.name),
                query: format!("max(container_memory_working_set_bytes{labels})"),
                decimals: 0,
                meaning: self.memory,
            },
            Figure {
                name: format!("p95-cpu-{}", self.name),
                query: format!(
                    "max(quantile_over_time(0.95, rate(container_cpu_usage_seconds_total{labels}[5m])[24h:5m]))"
                ),
                decimals: 3,
                meaning: self.cpu,
            },
        ]
    }

    fn labels(&self) -> String {
        let container = self.name;
        let job = r#"job="kubernetes-nodes-cadvisor""#;
        match self.namespace {
            Some(namespace) => {
                // Strings of JSON are strings of PromQL.
                let namespace = serde_json::Value::from(namespace);
                format!(r#"{{container="{container}", {job}, namespace={namespace}}}"#)
            }
            None => format!(r#"{{container="{container}", {job}}}"#),
        }
    }
}

impl Figure {
    /// Returns the parameter with the values of the query's samples. The query of a figure has one
    /// sample, or none if Prometheus lacks the series.
    pub fn parameter(&self, samples: Result<Vec<f64>, Absence>) -> Parameter {
        Parameter {
            name: self.name.clone(),
            value: samples.and_then(|samples| self.value(&samples)),
            meaning: self.meaning,
        }
    }

    fn value(&self, samples: &[f64]) -> Result<String, Absence> {
        let left_out = |reason: &str| Err(Absence::LeftOut(reason.to_owned()));
        match samples {
            [value] if value.is_finite() && *value >= 0.0 => {
                // Without the sign of a negative zero.
                Ok(format!("{:.*}", self.decimals, value.abs()))
            }
            [] => left_out("Prometheus has no series of it"),
            [_] => left_out("the value of Prometheus is not a number of 0 or more"),
            _ => left_out("Prometheus has more than one value of it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(decimals: usize) -> Figure {
        Figure {
            name: "a".to_owned(),
            query: String::new(),
            decimals,
            meaning: "",
        }
    }

    #[test]
    fn values_have_decimals_of_linkerd() {
        for (decimals, sample, expect) in [
            (0, 12.4, "12"),
            (0, 2.5, "2"),
            (0, -0.0, "0"),
            (0, 268_435_456.0, "268435456"),
            (3, 0.018_21, "0.018"),
            (3, 0.0, "0.000"),
        ] {
            let parameter = figure(decimals).parameter(Ok(vec![sample]));
            assert_eq!(parameter.value.as_deref(), Ok(expect), "{sample}");
        }
    }

    #[test]
    fn anything_but_one_number_is_left_out() {
        for samples in [
            vec![],
            vec![1.0, 2.0],
            vec![f64::NAN],
            vec![f64::INFINITY],
            vec![-1.0],
        ] {
            let parameter = figure(0).parameter(Ok(samples.clone()));
            let is_left_out = matches!(parameter.value, Err(Absence::LeftOut(_)));
            assert!(is_left_out, "{samples:?}: {:?}", parameter.value);
        }
        let unread = Absence::Unread("refused".to_owned());
        let parameter = figure(0).parameter(Err(unread.clone()));
        assert_eq!(parameter.value, Err(unread));
    }

    #[test]
    fn containers_are_those_of_the_installation() {
        let names = |extensions: &[ObjectMeta]| -> Vec<String> {
            let figures = figures("mesh\"}", extensions).into_iter();
            figures.map(|figure| figure.name).collect()
        };
        assert_eq!(names(&[]).len(), 8);
        let mut viz = ObjectMeta {
            name: Some("observability".to_owned()),
            ..ObjectMeta::default()
        };
        viz.labels = Some([("linkerd.io/extension".to_owned(), "viz".to_owned())].into());
        let with_viz = names(std::slice::from_ref(&viz));
        assert!(with_viz.contains(&"max-mem-prometheus".to_owned()));
        assert!(with_viz.contains(&"p95-cpu-prometheus".to_owned()));
        let figures = figures("mesh\"}", &[viz]);
        let query = |name: &str| {
            let figure = figures.iter().find(|figure| figure.name == name);
            figure.unwrap().query.clone()
        };
        assert_eq!(
            query("max-mem-destination"),
            r#"max(container_memory_working_set_bytes{container="destination", job="kubernetes-nodes-cadvisor", namespace="mesh\"}"})"#
        );
        assert!(query("p95-cpu-prometheus").contains(r#"namespace="observability""#));
    }
}
