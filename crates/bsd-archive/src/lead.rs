//! May a member that leads its cluster claim a chain, of which other members have claimed parts?
//!
//! All members have one log with one id, and one chain. The member that leads writes it. Its claim says
//! of which cluster it is, and in which term it leads. A cluster has one leader in a term, so the terms
//! of its claims order its writers. A member that was replaced and does not know it yet, because it is
//! cut off from the others, finds a later term, and claims nothing. What it had put before is no harm: a
//! log of a member has committed changes alone, which the later leader has too.
//!
//! | the newest claim is | then |
//! |---|---|
//! | of this cluster, of an earlier term, or its own | the chain is claimed |
//! | of this cluster, of a later term | nothing is put; it is asked again, until this member follows |
//! | of anyone else, and this cluster has claimed the chain before | it was replaced, and must not go on |
//! | of anyone else, and this cluster has not | as for a server that is alone |

use super::format::{Head, Kind, chain_dir, claims_dir, number_in, numbered};
use super::reader::read_sound;
use super::store::{Store, Trouble};
use bsd::storage::format::LogId;

/// Who leads which cluster, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lead {
    /// The cluster.
    pub cluster: [u8; 16],
    /// The member.
    pub member: u64,
    /// The term in which it leads.
    pub term: u64,
}

impl std::fmt::Display for Lead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "member {:016x} of cluster ", self.member)?;
        self.cluster
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ", term {}", self.term)
    }
}

impl Lead {
    /// The text of its claims: `node`, and who it is.
    pub(super) fn sign(&self, node: &str) -> String {
        format!("{node}; {self}")
    }

    /// Whose claim has this text; `None`: that of a server that is alone.
    pub(super) fn of(text: &[u8]) -> Option<Lead> {
        let text = std::str::from_utf8(text).ok()?;
        let (_, lead) = text.rsplit_once("; member ")?;
        let (member, lead) = lead.split_once(" of cluster ")?;
        let (cluster, term) = lead.split_once(", term ")?;
        let lead = Lead {
            cluster: u128::from_str_radix(cluster, 16).ok()?.to_be_bytes(),
            member: u64::from_str_radix(member, 16).ok()?,
            term: term.parse().ok()?,
        };
        text.ends_with(&format!("; {lead}")).then_some(lead)
    }

    /// It has led before the other one, or is the other one.
    fn is_up_to(&self, other: &Lead) -> bool {
        self.term < other.term || self == other
    }

    /// What this one may do with the chain, by the claims in it.
    ///
    /// # Errors
    /// The store did not answer, or a claim is damaged.
    pub(super) fn right(&self, store: &dyn Store, log: LogId) -> Result<Right, Trouble> {
        let dir = claims_dir(log);
        let marks = store.list(&dir, "")?;
        let numbers = marks.iter().rev();
        let mut newest_of_others = None;
        for number in numbers.filter_map(|mark| number_in(&dir, &mark.name)) {
            let Some((epoch, who)) = claim(store, log, number)? else {
                continue;
            };
            match Lead::of(who.as_bytes()) {
                Some(by) if by.cluster == self.cluster => {
                    return Ok(match newest_of_others {
                        Some((who, epoch)) => Right::Replaced { who, epoch },
                        None if by.is_up_to(self) => Right::Claims,
                        None => Right::Waits(by),
                    });
                }
                _ => drop(newest_of_others.get_or_insert((who, epoch))),
            }
        }
        Ok(Right::AsAlone)
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Right {
    /// It claims the chain.
    Claims,
    /// It claims nothing while that one may lead.
    Waits(Lead),
    /// It must not go on: someone else has claimed the chain, in this epoch.
    Replaced { who: String, epoch: u32 },
    /// What a server that is alone may do.
    AsAlone,
}

/// Epoch and text of the claim with this number. `None`: its mark was put, and the link was not, or
/// another link has its number.
fn claim(store: &dyn Store, log: LogId, number: u64) -> Result<Option<(u32, String)>, Trouble> {
    let name = numbered(&chain_dir(log), number);
    let claim = (store.place(), &*name, "whose claim it is cannot be known");
    let found = read_sound(
        claim,
        || store.get(&name),
        |bytes| {
            let (head, _, body) = Head::decode(bytes)?;
            let is_claim = matches!(head.kind, Kind::Claim { .. } | Kind::Takeover);
            let who = String::from_utf8_lossy(body).into_owned();
            Ok(is_claim.then_some((head.epoch, who)))
        },
    )?;
    Ok(found.flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::put_claim;
    use crate::claims::tests::claim;
    use crate::histories::LOG;
    use crate::sim::SimStore;

    fn lead(cluster: u8, member: u64, term: u64) -> Lead {
        Lead {
            cluster: [cluster; 16],
            member,
            term,
        }
    }

    /// A store with claims of these texts, one after another.
    fn claimed(texts: &[String]) -> SimStore {
        let store = SimStore::new(1);
        for (number, text) in (1..).zip(texts) {
            let (bytes, _) = claim(number, number as u32, text);
            assert!(put_claim(&store, LOG, number, &bytes).unwrap());
        }
        store
    }

    #[test]
    fn a_claim_says_who_leads_and_no_other_text_does() {
        let of = lead(0x1f, 7, 12);
        let text = of.sign("host; member 3, process 4");
        assert_eq!(Lead::of(text.as_bytes()), Some(of));
        assert_eq!(
            text,
            "host; member 3, process 4; member 0000000000000007 of cluster \
             1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f, term 12"
        );
        for at in 0..text.len() {
            assert_eq!(
                Lead::of(&text.as_bytes()[..at]).filter(|it| *it == of),
                None
            );
        }
        assert_eq!(Lead::of(b"host, process 4"), None);
        assert_eq!(Lead::of(text.replace("0007", "7").as_bytes()), None);
    }

    #[test]
    fn a_chain_is_claimed_by_the_latest_leader_of_the_cluster_that_has_it() {
        let own = lead(1, 7, 5);
        let alone = || "host, process 4".to_owned();
        let of = |cluster, member, term| lead(cluster, member, term).sign("host");
        let later = lead(1, 8, 6);
        let replaced = |who: String, epoch| Right::Replaced { who, epoch };
        let cases: [(&[String], Right); 10] = [
            (&[], Right::AsAlone),
            (&[alone()], Right::AsAlone),
            (&[alone(), of(2, 7, 9)], Right::AsAlone),
            (&[alone(), of(1, 8, 4)], Right::Claims),
            (&[of(1, 7, 5)], Right::Claims),
            (&[of(1, 7, 5), of(1, 8, 6)], Right::Waits(later)),
            // There is one leader in a term. If there were two, neither took it from the other.
            (&[of(1, 8, 5)], Right::Waits(lead(1, 8, 5))),
            (&[of(1, 8, 4), alone()], replaced(alone(), 2)),
            (&[of(1, 8, 6), alone()], replaced(alone(), 2)),
            (
                &[of(1, 8, 4), alone(), of(2, 7, 3)],
                replaced(of(2, 7, 3), 3),
            ),
        ];
        for (texts, right) in cases {
            let found = own.right(&claimed(texts), LOG).unwrap();
            assert_eq!(found, right, "{texts:?}");
        }
    }

    #[test]
    fn a_mark_without_its_claim_says_nothing_and_a_damaged_claim_is_named() {
        let store = claimed(&[lead(1, 8, 4).sign("host")]);
        let mark = numbered(&claims_dir(LOG), 2);
        store.put_if_absent(&mark, &[]).unwrap();
        let own = lead(1, 7, 5);
        assert_eq!(own.right(&store, LOG).unwrap(), Right::Claims);
        let name = numbered(&chain_dir(LOG), 2);
        store.put_if_absent(&name, b"something else").unwrap();
        let error = own.right(&store, LOG).unwrap_err();
        assert!(error.is_damage && !error.is_final, "{error:?}");
        let said = error.what;
        assert!(
            said.contains(store.place()) && said.contains(&name),
            "{said}"
        );
        assert!(
            !said.contains("remove it") && !said.contains("delete"),
            "{said}"
        );
        // The object is put right.
        let (bytes, _) = claim(2, 2, &lead(1, 8, 4).sign("host"));
        store.set_object(&name, Some(bytes));
        assert_eq!(own.right(&store, LOG).unwrap(), Right::Claims);
    }

    /// One answer of a store may be wrong.
    #[test]
    fn a_claim_that_is_read_wrong_now_and_then_is_not_called_damaged() {
        let store = claimed(&[lead(1, 8, 4).sign("host")]);
        store.set_lies_for(1);
        for _ in 0..1000 {
            match lead(1, 7, 5).right(&store, LOG) {
                // The claim was not found, or its mark.
                Ok(Right::Claims | Right::AsAlone) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}
