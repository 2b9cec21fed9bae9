//! The order of objects by age, which decides between objects that contradict each other.

use crate::model::{Name, Object, Route};

/// The place of an object in the order by age: the oldest object is first.
///
/// An object without creation time is the youngest, and equally old objects follow each other by
/// namespace and name. Objects of a directory have no creation time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Age<'a> {
    created: i64,
    name: &'a Name,
}

/// The place of a route in the order of precedence: of rules that match a request equally well, the
/// first route's applies.
pub type Precedence<'a> = (Age<'a>, &'static str, &'static str);

impl<M> Route<M> {
    /// Returns the precedence: by age, then by API group and kind.
    pub fn precedence(&self) -> Precedence<'_> {
        let age = Age::new(self.created, &self.id.name);
        (age, self.id.kind.group(), self.id.kind.as_str())
    }
}

impl Object {
    /// Returns the age of an object that may contradict another one of its kind.
    pub fn age(&self) -> Option<Age<'_>> {
        Some(match self {
            Self::Server(server) => server.age(),
            Self::RateLimitPolicy(policy) => Age::new(policy.created, &policy.name),
            Self::EgressNetwork(network) => Age::new(network.created, &network.name),
            _ => self.precedence()?.0,
        })
    }

    /// Returns the precedence of a route.
    pub fn precedence(&self) -> Option<Precedence<'_>> {
        Some(match self {
            Self::PolicyHttpRoute(route) | Self::GatewayHttpRoute(route) => route.precedence(),
            Self::GatewayGrpcRoute(route) => route.precedence(),
            Self::GatewayTlsRoute(route) | Self::GatewayTcpRoute(route) => route.precedence(),
            _ => return None,
        })
    }
}

impl<'a> Age<'a> {
    /// `created` is in seconds since 1970.
    pub fn new(created: Option<i64>, name: &'a Name) -> Self {
        Self {
            created: created.unwrap_or(i64::MAX),
            name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_ordered_by_time_then_by_namespace_and_name() {
        let [a, b, other] = [("shop", "a"), ("shop", "b"), ("a", "z")]
            .map(|(namespace, name)| Name::new(namespace, name));
        let mut ages = [
            Age::new(None, &a),
            Age::new(Some(20), &a),
            Age::new(Some(10), &b),
            Age::new(Some(20), &other),
        ];
        ages.sort();
        let order = [(10, "b"), (20, "z"), (20, "a"), (i64::MAX, "a")];
        assert_eq!(ages.map(|age| (age.created, &*age.name.name)), order);
    }
}
