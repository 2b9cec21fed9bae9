//! The flags of the commands that tap: `tap`, `top` and `profile`.

use mesh_api::tap_request::{DEFAULT_MAX_RPS, LARGEST_MAX_RPS};

use crate::clients::tap::TapQuery;
use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::resource::Resource;

#[derive(Debug, clap::Args)]
pub(in crate::commands::viz) struct Filter {
    /// KIND/NAME or KIND NAME: cj, ds, deploy, job, ns, po, rs, rc, sts, svc
    #[arg(required = true, num_args = 1..=2, value_name = "RESOURCE")]
    resource: Vec<String>,
    /// Only requests to this resource
    #[arg(long, value_name = "RESOURCE")]
    to: Option<String>,
    /// Namespace of the resource of --to [default: the namespace of -n]
    #[arg(long, value_name = "NAME", requires = "to")]
    to_namespace: Option<String>,
    /// Only requests with this scheme
    #[arg(long, value_name = "SCHEME")]
    scheme: Option<String>,
    /// Only requests with this method
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Only requests with exactly this authority
    #[arg(long, value_name = "AUTHORITY")]
    authority: Option<String>,
    /// Only requests whose path begins with this
    #[arg(long, value_name = "PREFIX")]
    path: Option<String>,
    /// Maximum number of requests per second, over all pods
    #[arg(long, value_name = "NUMBER", default_value_t = DEFAULT_MAX_RPS, value_parser = parse_max_rps)]
    max_rps: f32,
    /// Select pods of the resource by their labels, in the notation of kubectl
    #[arg(
        short = 'l',
        long,
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    selector: String,
}

impl Filter {
    /// A tap is of one namespace: without `-n`, the default one of the mesh.
    pub(in crate::commands::viz) fn query(
        &self,
        mesh: &Mesh,
        global: &Global,
    ) -> Result<TapQuery, Failure> {
        let resource = Resource::parse_one(&self.resource)?;
        let scope = mesh.scope(global);
        let namespace = scope.namespace().unwrap_or(mesh.default_namespace());
        let to = self.to.as_deref().map(Resource::parse).transpose()?;
        let to_namespace = self.to_namespace.as_deref().unwrap_or(namespace);
        let mut query = TapQuery::new(&resource, namespace)?;
        query.selector.clone_from(&self.selector);
        query.to = to.map(|to| (to, to_namespace.to_owned()));
        query.scheme.clone_from(&self.scheme);
        query.method.clone_from(&self.method);
        query.authority.clone_from(&self.authority);
        query.path.clone_from(&self.path);
        query.max_rps = self.max_rps;
        Ok(query)
    }
}

fn parse_max_rps(text: &str) -> Result<f32, String> {
    let rps: Option<f32> = text.parse().ok();
    rps.filter(|rps| *rps > 0.0 && *rps <= LARGEST_MAX_RPS)
        .ok_or_else(|| format!("expected a number above 0 and at most {LARGEST_MAX_RPS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_maximum() {
        assert_eq!(parse_max_rps("0.5"), Ok(0.5));
        assert_eq!(parse_max_rps("10000"), Ok(LARGEST_MAX_RPS));
        for bad in ["0", "-1", "10001", "NaN", "inf", "x"] {
            assert!(parse_max_rps(bad).is_err(), "{bad}");
        }
    }
}
