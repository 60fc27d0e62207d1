//! What an environment's egress comes to: the networks that its rules name, less what no sandbox
//! reaches. Pure.

use super::seen::{Problem, Rules};
use crate::{
    api::agent::{Egress, EgressMode, EgressPort, EgressRule},
    domain::{
        egress::{Block, Net, block},
        reason::Reason,
    },
};

/// A network that may be reached at these ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The network.
    pub block: Block,
    /// The ports.
    pub ports: Vec<EgressPort>,
}

/// Where servers of an environment may connect to.
///
/// # Errors
/// Which rule names what no sandbox may reach.
pub fn ways(egress: &Egress, rules: &Rules) -> Result<Vec<Way>, Problem> {
    if egress.mode == EgressMode::Deny {
        return Ok(vec![]);
    }
    let api_server = rules.api_server.all().into_iter().map(Net::of);
    let denied: Vec<_> = rules.denied_egress.iter().copied().chain(api_server).collect();
    let way = |(n, rule): (usize, &EgressRule)| {
        let block = block(&rule.cidr, &rule.except, &denied).map_err(|problem| {
            let cause = format!("The Agent's spec.environment.egress.rules[{n}]: {problem}.");
            Problem::new(Reason::EgressForbidden, cause)
        })?;
        Ok(Way { block, ports: rule.ports.clone() })
    };
    egress.rules.iter().enumerate().map(way).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::api_server::ApiServer;
    use serde_json::{Value, json};

    fn rules() -> Rules {
        Rules {
            api_server: ApiServer::new(["203.0.113.9".parse().unwrap()]),
            denied_egress: vec!["198.51.100.0/24".parse().unwrap()],
            ..Rules::default()
        }
    }

    fn of(rules_: Value) -> Result<Vec<Way>, Problem> {
        let egress = json!({"mode": "Allow", "rules": rules_});
        ways(&serde_json::from_value(egress).unwrap(), &rules())
    }

    #[test]
    fn what_the_installation_denies_and_the_api_server_are_left_out() {
        let all = of(json!([{"cidr": "0.0.0.0/0", "ports": [{"port": 443}]}])).unwrap();
        for left_out in ["203.0.113.9/32", "198.51.100.0/24", "10.0.0.0/8", "169.254.0.0/16"] {
            assert!(all[0].block.except.contains(&left_out.parse().unwrap()), "{left_out}");
        }
    }

    #[test]
    fn a_rule_that_names_what_is_denied_is_named() {
        let fine = json!({"cidr": "192.0.2.0/24", "ports": [{"port": 443}]});
        for (cidr, word) in [
            ("203.0.113.9/32", "203.0.113.9/32"),
            ("198.51.100.128/25", "198.51.100.0/24"),
            ("169.254.169.254/32", "169.254.0.0/16"),
        ] {
            let bad = json!({"cidr": cidr, "ports": [{"port": 443}]});
            let problem = of(json!([fine, bad])).unwrap_err();
            assert_eq!(problem.reason, Reason::EgressForbidden);
            let said = problem.message;
            assert!(said.contains("egress.rules[1]") && said.contains(word), "{said}");
        }
    }

    #[test]
    fn deny_is_nothing() {
        assert_eq!(ways(&Egress::default(), &rules()), Ok(vec![]));
    }
}
