//! NATS JetStream: a stream of three replicas that a job leaves when it is acknowledged (`workqueue`),
//! and one consumer of it that all clients pull from.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::stream::{self, ClusterInfo, RetentionPolicy};
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::client::{Client, Meter, Result};

const CONSUMER: &str = "workers";
/// A client must be done with a job in this time: longer than any run.
const ACK_WAIT: Duration = Duration::from_secs(3600);

pub(crate) struct Nats {
    context: Context,
    queue: String,
    consumer: Option<PullConsumer>,
    /// Where each job that it has is acknowledged.
    jobs: Vec<async_nats::Subject>,
}

async fn open(address: &str) -> Result<Context> {
    Ok(jetstream::new(async_nats::connect(address).await?))
}

/// Make `wanted` the leader: ask another one to step down in its favour. Before 2.11 no wish may be
/// named, and either node may follow, so this is repeated.
async fn lead(context: &Context, led: Option<ClusterInfo>, wanted: &str, of: &str) -> Result<()> {
    let leader = led.and_then(|cluster| cluster.leader);
    let leader = leader.ok_or("there is no leader yet")?;
    if leader == wanted {
        return Ok(());
    }
    let wish = json!({"placement": {"preferred": wanted}});
    let answer: Value = context.request(of.to_owned(), &wish).await?;
    if !answer["error"].is_null() {
        let _: Value = context.request(of.to_owned(), &json!({})).await?;
    }
    // They agree on the next one.
    sleep(Duration::from_secs(1)).await;
    Err(format!("{leader} leads").into())
}

impl Client for Nats {
    async fn make_queue(leader: &str, queue: &str) -> Result<String> {
        let context = open(leader).await?;
        let node = context.client().server_info();
        let stream = context
            .get_or_create_stream(stream::Config {
                name: queue.into(),
                subjects: vec![queue.into()],
                retention: RetentionPolicy::WorkQueue,
                num_replicas: 3,
                ..Default::default()
            })
            .await?;
        let consumer: PullConsumer = stream
            .get_or_create_consumer(
                CONSUMER,
                pull::Config {
                    durable_name: Some(CONSUMER.into()),
                    ack_wait: ACK_WAIT,
                    max_ack_pending: -1,
                    max_waiting: 1 << 16,
                    num_replicas: 3,
                    ..Default::default()
                },
            )
            .await?;
        let cluster = stream.get_info().await?.cluster;
        let level = |it: &ClusterInfo| it.replicas.iter().all(|it| it.current && !it.offline);
        let is_level = cluster.as_ref().is_some_and(level);
        let of = format!("STREAM.LEADER.STEPDOWN.{queue}");
        lead(&context, cluster, &node.server_name, &of).await?;
        let cluster = consumer.get_info().await?.cluster;
        let of = format!("CONSUMER.LEADER.STEPDOWN.{queue}.{CONSUMER}");
        lead(&context, cluster, &node.server_name, &of).await?;
        if !is_level {
            return Err("a replica is behind".into());
        }
        Ok(format!("NATS {}", node.version))
    }

    async fn remove_queue(leader: &str, queue: &str) -> Result<()> {
        open(leader).await?.delete_stream(queue).await?;
        Ok(())
    }

    async fn connect(address: &str, queue: &str, pipeline: usize) -> Result<Nats> {
        let context = open(address).await?;
        let consumer = match pipeline {
            0 => None,
            _ => Some(context.get_consumer_from_stream(CONSUMER, queue).await?),
        };
        Ok(Nats {
            context,
            queue: queue.into(),
            consumer,
            jobs: Vec::new(),
        })
    }

    async fn put(&mut self, bodies: Vec<Bytes>, meter: &Meter) -> Result<()> {
        let sent = Instant::now();
        let mut acks = Vec::new();
        for body in bodies {
            acks.push(self.context.publish(self.queue.clone(), body).await?);
        }
        let acks = acks.into_iter().map(async |ack| {
            ack.await?;
            meter.answered(sent);
            Ok(())
        });
        try_join_all(acks).await.map(drop)
    }

    /// One request for all of them.
    async fn reserve(&mut self, count: usize, meter: &Meter) -> Result<()> {
        let consumer = self.consumer.as_ref().ok_or("it only puts")?;
        let sent = Instant::now();
        while self.jobs.len() < count {
            let batch = consumer.batch().max_messages(count - self.jobs.len());
            let mut jobs = batch
                .expires(ACK_WAIT)
                .messages()
                .await?
                .take(count - self.jobs.len());
            while let Some(job) = jobs.try_next().await? {
                meter.answered(sent);
                self.jobs
                    .push(job.message.reply.ok_or("a job without a reply subject")?);
            }
        }
        Ok(())
    }

    /// Acknowledgements that are answered when they are kept.
    async fn delete(&mut self, meter: &Meter) -> Result<()> {
        let (client, sent) = (self.context.client(), Instant::now());
        let acks = self.jobs.drain(..).map(|job| {
            let request = client.request(job, Bytes::from_static(b"+ACK"));
            async {
                request.await?;
                meter.answered(sent);
                Ok(())
            }
        });
        try_join_all(acks).await.map(drop)
    }
}
