//! RabbitMQ: a quorum queue of three members, which brings each client as many jobs as its pipeline is
//! deep.

use std::time::Instant;

use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use lapin::Acker;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer};

use crate::client::{Client, Meter, Result};

/// Messages that are kept on the disk.
const PERSISTENT: u8 = 2;

pub(crate) struct RabbitMq {
    _connection: Connection,
    channel: Channel,
    queue: String,
    consumer: Option<Consumer>,
    jobs: Vec<Acker>,
}

async fn open(address: &str) -> Result<(Connection, Channel)> {
    let uri = format!("amqp://guest:guest@{address}/%2f?heartbeat=0");
    let connection = Connection::connect(&uri, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

impl Client for RabbitMq {
    /// The node that is asked leads it.
    async fn make_queue(leader: &str, queue: &str) -> Result<String> {
        let (_connection, channel) = open(leader).await?;
        let mut kind = FieldTable::default();
        for (key, value) in [
            ("x-queue-type", "quorum"),
            ("x-queue-leader-locator", "client-local"),
        ] {
            kind.insert(key.into(), AMQPValue::LongString(value.into()));
        }
        let options = QueueDeclareOptions::durable();
        channel.queue_declare(queue.into(), options, kind).await?;
        Ok("RabbitMQ".into())
    }

    async fn remove_queue(leader: &str, queue: &str) -> Result<()> {
        let (_connection, channel) = open(leader).await?;
        channel
            .queue_delete(queue.into(), QueueDeleteOptions::default())
            .await?;
        Ok(())
    }

    async fn connect(address: &str, queue: &str, pipeline: usize) -> Result<RabbitMq> {
        let (connection, channel) = open(address).await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let mut consumer = None;
        if pipeline > 0 {
            let prefetch = u16::try_from(pipeline)?;
            channel
                .basic_qos(prefetch, BasicQosOptions::default())
                .await?;
            let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
            consumer = Some(
                channel
                    .basic_consume(queue.into(), "".into(), options, none)
                    .await?,
            );
        }
        Ok(RabbitMq {
            _connection: connection,
            channel,
            queue: queue.into(),
            consumer,
            jobs: Vec::new(),
        })
    }

    async fn put(&mut self, bodies: Vec<Bytes>, meter: &Meter) -> Result<()> {
        let sent = Instant::now();
        let mut confirms = Vec::new();
        for body in bodies {
            let (options, queue) = (BasicPublishOptions::default(), self.queue.as_str().into());
            let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
            let put = self
                .channel
                .basic_publish("".into(), queue, options, &body, properties);
            confirms.push(put.await?);
        }
        let confirms = confirms
            .into_iter()
            .map(async |confirm| match confirm.await? {
                Confirmation::Ack(None) => {
                    meter.answered(sent);
                    Ok(())
                }
                refused => Err(format!("a put was refused: {refused:?}").into()),
            });
        try_join_all(confirms).await.map(drop)
    }

    /// Nothing is asked: the jobs come.
    async fn reserve(&mut self, count: usize, meter: &Meter) -> Result<()> {
        let consumer = self.consumer.as_mut().ok_or("it only puts")?;
        while self.jobs.len() < count {
            let job = consumer
                .try_next()
                .await?
                .ok_or("the consumer was cancelled")?;
            self.jobs.push(job.acker);
            meter.done(1);
        }
        Ok(())
    }

    /// The protocol has no answer to an acknowledgement.
    async fn delete(&mut self, meter: &Meter) -> Result<()> {
        for job in self.jobs.drain(..) {
            job.ack(BasicAckOptions::default()).await?;
            meter.done(1);
        }
        Ok(())
    }
}
