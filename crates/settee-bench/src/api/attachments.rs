//! Rows of attachments, alternating with the bare server, which reads or sends as many bytes.

use std::borrow::Cow;

use settee_client::Connection;

use super::bench::{Bench, directory};
use super::clients::{Getter, IdPath, NumberRange, Putter, generators};
use super::plan::{ATTACHMENT_BYTES, ATTACHMENT_COUNT_MIN, Plan};
use crate::documents::{Generator, attachment};
use crate::drive::{Client, drive};
use crate::error::{Error, Result};
use crate::limits::BareClient;
use crate::report::Row;

/// Number of attachments that readers choose from.
const GET_COUNT: u64 = 64;

/// Number of attachments that are read back after a row has put them.
const READ_BACK_COUNT: u64 = 3;

/// The path of every attachment within its document.
const ATTACHMENT_PATH: &str = "/a";

fn putters(database: &str, numbers: &NumberRange, clients: u64) -> Vec<Putter> {
    let putter = |_| Putter {
        target: IdPath::new(&directory(database), ATTACHMENT_PATH),
        kind: "application/octet-stream",
        numbers: numbers.clone(),
        content: |_, number, _| Cow::Borrowed(attachment(number, ATTACHMENT_BYTES)),
        body: Cow::Borrowed(&[]),
    };
    (0..clients).map(putter).collect()
}

fn getter(database: &str, count: u64, generator: Generator) -> Getter {
    Getter {
        target: IdPath::new(&directory(database), ATTACHMENT_PATH),
        count,
        generator,
        number: 0,
        is_right: |body, _, number| body == attachment(number, ATTACHMENT_BYTES),
    }
}

impl Bench<'_> {
    pub(super) async fn attachment_put(&mut self, plan: &Plan, clients: u64) -> Result<Row> {
        let database = self.create().await?;
        let numbers = NumberRange::new(0..self.config.attachment_count());
        let putters = putters(&database, &numbers, clients);
        let bare_client = BareClient::put(attachment(0, ATTACHMENT_BYTES).to_vec());
        let bytes = ATTACHMENT_BYTES as u64;
        let row = self.row_beside_bare(plan, "requests/s", putters, bare_client, bytes).await?;
        self.check_count(plan.name, &database, numbers.taken()).await?;
        self.read_back(plan, &database, numbers.taken()).await?;
        Ok(row)
    }

    /// Gets some of the attachments that were put and compares their content.
    async fn read_back(&mut self, plan: &Plan, database: &str, count: u64) -> Result<()> {
        let mut connection = Connection::open(&self.setup.target.server).await?;
        let mut getter = getter(database, count, Generator::new(0));
        for _ in 0..READ_BACK_COUNT {
            let answer = connection.exchange(getter.next().expect("it is endless")).await?;
            getter.check(answer).map_err(|reason| Error::wrong(plan.name, reason))?;
        }
        Ok(())
    }

    pub(super) async fn attachment_get(&mut self, plan: &Plan, clients: u64) -> Result<Row> {
        let database = self.create().await?;
        let count = self.config.scaled(GET_COUNT, ATTACHMENT_COUNT_MIN);
        let putters = putters(&database, &NumberRange::new(0..count), 1);
        drive(plan.name, &self.setup.target, putters, None).await?;
        self.settle().await;
        let getters = generators(clients).map(|generator| getter(&database, count, generator)).collect();
        let bytes = ATTACHMENT_BYTES as u64;
        self.row_beside_bare(plan, "requests/s", getters, BareClient::get(bytes), bytes).await
    }
}
