//! The parts of a request's multipart body, read from the request as they arrive.

use bytes::Bytes;

use crate::body::multipart::{Event, Head, Splitter};
use crate::body::{BodyBuffer, BufferedBody};
use crate::context::RequestContext;
use crate::error::ApiError;

/// The parts of a request's body. The body itself stays in the request context.
pub(crate) struct Parts(Splitter);

impl Parts {
    /// A parser for a body of this content type.
    ///
    /// # Errors
    /// 400 if there is no boundary.
    pub(crate) fn new(content_type: &str) -> Result<Parts, ApiError> {
        Splitter::of(content_type).map(Parts)
    }

    /// The next element.
    ///
    /// # Errors
    /// 400 for a malformed or truncated body, 408 if the client is too slow.
    pub(crate) async fn next(&mut self, context: &mut RequestContext<'_>) -> Result<Event, ApiError> {
        loop {
            if let Some(event) = self.0.next()? {
                return Ok(event);
            }
            match context.body.next_data(&context.server.limits).await? {
                Some(frame) => self.0.push(&frame),
                None => return Err(ApiError::bad_request("expected more data")),
            }
        }
    }

    /// The next part's head; None after the last part.
    ///
    /// # Errors
    /// As for [`Parts::next`].
    pub(crate) async fn next_part(
        &mut self,
        context: &mut RequestContext<'_>,
    ) -> Result<Option<Head>, ApiError> {
        match self.next(context).await? {
            Event::Head(head) => Ok(Some(head)),
            Event::End => Ok(None),
            Event::Piece(_) | Event::PartEnd => unreachable!("the part before it was read to its end"),
        }
    }

    /// The next piece of a part; None at the part's end.
    ///
    /// # Errors
    /// As for [`Parts::next`].
    pub(crate) async fn next_piece(
        &mut self,
        context: &mut RequestContext<'_>,
    ) -> Result<Option<Bytes>, ApiError> {
        match self.next(context).await? {
            Event::Piece(piece) => Ok(Some(piece)),
            Event::PartEnd => Ok(None),
            Event::Head(_) | Event::End => unreachable!("a part has an end"),
        }
    }

    /// The whole content of a part, appended to `buffer`.
    ///
    /// # Errors
    /// As for [`Parts::next`]; 413 if it exceeds the buffer's limit; 503 if the memory is exhausted.
    pub(crate) async fn collect(
        &mut self,
        context: &mut RequestContext<'_>,
        mut buffer: BodyBuffer,
    ) -> Result<BufferedBody, ApiError> {
        while let Some(piece) = self.next_piece(context).await? {
            buffer.extend(&piece, &context.server.body_memory).await?;
        }
        Ok(buffer.finish())
    }
}
