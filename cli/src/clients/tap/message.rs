//! Reads a request of a client of the tap API, such as the dashboard.

use mesh_api::linkerd2::tap::TapByResourceRequest;
use mesh_api::linkerd2::tap::tap_by_resource_request::Match;
use mesh_api::linkerd2::tap::tap_by_resource_request::r#match::{
    Match as MatchKind, http as http_match,
};
use mesh_api::linkerd2::viz::Resource as Message;
use mesh_api::{tap_conditions, tap_request};

use super::TapQuery;
use crate::exit::Failure;
use crate::resource::Resource;

impl TapQuery {
    /// Returns the query of a message. Its conditions must be a flat list, as in the tap API, and
    /// each of another kind.
    pub(crate) fn from_message(message: &TapByResourceRequest) -> Result<Self, Failure> {
        tap_conditions::filter(message.r#match.as_ref())
            .map_err(|error| Failure::Input(error.to_string()))?;
        let selection = message.target.as_ref();
        let target = selection.and_then(|selection| selection.resource.as_ref());
        let target =
            target.ok_or_else(|| Failure::Input("the request has no target".to_owned()))?;
        let mut query = Self::new(&resource(target)?, &target.namespace)?;
        if let Some(selection) = selection {
            query.selector.clone_from(&selection.label_selector);
        }
        query.max_rps =
            tap_request::max_rps(message).map_err(|error| Failure::Input(error.to_string()))?;
        query.with_headers = tap_request::extracts_headers(message);
        if let Some(MatchKind::All(all)) =
            message.r#match.as_ref().and_then(|it| it.r#match.as_ref())
        {
            for condition in &all.matches {
                query.add(condition)?;
            }
        }
        Ok(query)
    }

    fn add(&mut self, condition: &Match) -> Result<(), Failure> {
        let (field, value) = match &condition.r#match {
            Some(MatchKind::Destinations(selection)) => {
                let Some(to) = &selection.resource else {
                    return Ok(());
                };
                let is_new = self
                    .to
                    .replace((resource(to)?, to.namespace.clone()))
                    .is_none();
                return one(is_new);
            }
            Some(MatchKind::Http(http)) => match &http.r#match {
                Some(http_match::Match::Scheme(value)) => (&mut self.scheme, value),
                Some(http_match::Match::Method(value)) => (&mut self.method, value),
                Some(http_match::Match::Authority(value)) => (&mut self.authority, value),
                Some(http_match::Match::Path(value)) => (&mut self.path, value),
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        one(field.replace(value.clone()).is_none())
    }
}

fn one(is_new: bool) -> Result<(), Failure> {
    if is_new {
        return Ok(());
    }
    let problem = "the request has several conditions of one kind; expected one of each";
    Err(Failure::Input(problem.to_owned()))
}

fn resource(message: &Message) -> Result<Resource, Failure> {
    Resource::parse(&format!("{}/{}", message.r#type, message.name))
}

#[cfg(test)]
mod tests {
    use mesh_api::tap_request::{DEFAULT_MAX_RPS, LARGEST_MAX_RPS};

    use super::*;

    fn query() -> TapQuery {
        let mut query = TapQuery::new(&Resource::parse("deploy/web").unwrap(), "shop").unwrap();
        query.selector = "app=web".to_owned();
        query.to = Some((Resource::parse("svc/api").unwrap(), "bank".to_owned()));
        query.scheme = Some("http".to_owned());
        query.method = Some("GET".to_owned());
        query.authority = Some("web:80".to_owned());
        query.path = Some("/a".to_owned());
        query.max_rps = 7.0;
        query.with_headers = true;
        query
    }

    #[test]
    fn query_of_a_message_has_the_same_message() {
        let mut namespace = TapQuery::new(&Resource::parse("ns/shop").unwrap(), "").unwrap();
        namespace.max_rps = 1.0;
        for query in [query(), namespace] {
            let message = query.to_message();
            let read = TapQuery::from_message(&message).unwrap();
            assert_eq!(read.to_message(), message);
        }
    }

    #[test]
    fn requests_beyond_the_limits_are_refused() {
        let mut twice = query().to_message();
        if let Some(MatchKind::All(all)) = twice.r#match.as_mut().and_then(|it| it.r#match.as_mut())
        {
            let first = all.matches[0].clone();
            all.matches.push(first);
        }
        let mut fast = query().to_message();
        fast.max_rps = LARGEST_MAX_RPS * 2.0;
        let mut endless = query().to_message();
        endless.max_rps = f32::NAN;
        let mut other = query().to_message();
        let kind = |message: &mut TapByResourceRequest, kind: &str| {
            let target = message.target.as_mut().and_then(|it| it.resource.as_mut());
            kind.clone_into(&mut target.unwrap().r#type);
        };
        kind(&mut other, "secret");
        for (message, problem) in [
            (TapByResourceRequest::default(), "has no target"),
            (twice, "several conditions of one kind"),
            (fast, "at most 10000 requests per second"),
            (endless, "at most 10000 requests per second"),
            (other, "invalid resource"),
        ] {
            let error = TapQuery::from_message(&message).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        let mut zero = query().to_message();
        zero.max_rps = 0.0;
        assert_eq!(
            TapQuery::from_message(&zero).unwrap().max_rps,
            DEFAULT_MAX_RPS
        );
    }
}
