//! Connections for one question: to be added, and for a snapshot.

use super::*;

#[test]
fn a_node_without_a_cluster_asks_to_be_added_and_is_answered() {
    let mut site = Site::new(1);
    let newcomer = Me {
        cluster: ClusterId([0; 16]),
        ..me(9, "127.0.0.1:9".into())
    };
    let dialed = dial(&newcomer, &site, Purpose::Join, None);
    let (hello, mut link) = called(&mut site);
    assert_eq!((hello.from, hello.purpose), (NodeId(9), Purpose::Join));
    let (mut newcomer, welcome) = dialed.join().unwrap().unwrap();
    assert_eq!(welcome.node, NodeId(1));
    let join = Join {
        node: NodeId(9),
        peer: "127.0.0.1:9".into(),
        client: String::new(),
    };
    newcomer.send(&Frame::Join(join.clone())).unwrap();
    assert_eq!(link.receive().unwrap(), Frame::Join(join));
    let invite = Frame::Invite(JoinAnswer::Elsewhere {
        node: NodeId(2),
        peer: "b:1".into(),
    });
    link.send(&invite).unwrap();
    assert_eq!(newcomer.receive().unwrap(), invite);
    assert!(site.peers.callers.is_empty());
    drop(link);
    assert_eq!(
        newcomer.receive().unwrap_err().kind(),
        ErrorKind::UnexpectedEof
    );
}

#[test]
fn a_snapshot_of_a_stranger_is_refused_in_words() {
    let mut site = Site::new(1);
    let stranger = Me {
        cluster: ClusterId([9; 16]),
        ..me(9, "127.0.0.1:9".into())
    };
    let dialed = dial(&stranger, &site, Purpose::Snapshot, None);
    site.until(|_| dialed.is_finished());
    let error = dialed.join().unwrap().unwrap_err();
    assert!(
        error.to_string().contains("this is a node of cluster"),
        "{error}"
    );
}
