//! The C interface declared in include/kun_bridge.h. It turns views into `&str`, results into
//! owned strings and panics into a status, and knows nothing about templates itself; grammars have
//! theirs in grammar_abi.rs.

mod dumps;
mod environment;
mod grammar;
mod grammar_abi;
mod json;
mod messages;
mod probe;
mod python;
mod rewrite;
mod schema;
mod sentry;
mod source;
mod template;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;

use template::{Failure, Input, Limits, Template};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct View {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct OwnedString {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TemplateLimits {
    steps_max: u64,
    output_bytes_max: u64,
}

#[repr(C)]
pub struct TemplateInput {
    messages: View,
    tools: View,
    extra: View,
    now: i64,
    add_generation_prompt: i32,
    normalize: i32,
}

const OK: i32 = 0;
const REFUSED: i32 = 1;
const EXHAUSTED: i32 = 2;
const PANICKED: i32 = 3;

const TEMPLATES: &str = "the template engine";

impl View {
    /// Requires: data points to size bytes that live as long as the call.
    unsafe fn text<'a>(self, what: &str) -> Result<&'a str, Failure> {
        if self.size == 0 {
            return Ok("");
        }
        let bytes = slice::from_raw_parts(self.data, self.size);
        std::str::from_utf8(bytes)
            .map_err(|e| Failure::Refused(format!("{what} is not UTF-8: {e}")))
    }
}

impl OwnedString {
    fn new(text: String) -> OwnedString {
        let mut bytes = std::mem::ManuallyDrop::new(text.into_bytes());
        OwnedString {
            data: bytes.as_mut_ptr(),
            size: bytes.len(),
            capacity: bytes.capacity(),
        }
    }
}

/// Runs `body` of `engine`; what it returns or why it failed goes into `text`.
fn guarded(
    text: &mut OwnedString,
    engine: &str,
    body: impl FnOnce() -> Result<String, Failure>,
) -> i32 {
    let (status, string) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(string)) => (OK, string),
        Ok(Err(Failure::Refused(why))) => (REFUSED, why),
        Ok(Err(Failure::Exhausted(why))) => (EXHAUSTED, why),
        Err(_) => (PANICKED, format!("{engine} panicked")),
    };
    *text = OwnedString::new(string);
    status
}

/// # Safety
/// Views must be readable, `handle` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn kun_template_compile(
    source: View,
    bos_token: View,
    eos_token: View,
    limits: TemplateLimits,
    handle: *mut *mut Template,
    error: *mut OwnedString,
) -> i32 {
    let handle = &mut *handle;
    guarded(&mut *error, TEMPLATES, || {
        let limits = Limits {
            steps_max: limits.steps_max,
            output_bytes_max: usize::try_from(limits.output_bytes_max).unwrap_or(usize::MAX),
        };
        let template = Template::compile(
            source.text("the chat template")?,
            bos_token.text("the BOS token")?,
            eos_token.text("the EOS token")?,
            limits,
        )?;
        *handle = Box::into_raw(Box::new(template));
        Ok(String::new())
    })
}

/// # Safety
/// `handle` must come from kun_template_compile, `input` and its views must be readable and `text`
/// writable.
#[no_mangle]
pub unsafe extern "C" fn kun_template_render(
    handle: *const Template,
    input: *const TemplateInput,
    text: *mut OwnedString,
) -> i32 {
    let (template, input) = (&*handle, &*input);
    guarded(&mut *text, TEMPLATES, || {
        template.render(&Input {
            messages: input.messages.text("messages")?,
            tools: input.tools.text("tools")?,
            extra: input.extra.text("the extra variables")?,
            now: input.now,
            add_generation_prompt: input.add_generation_prompt != 0,
            normalize: input.normalize != 0,
        })
    })
}

/// # Safety
/// `handle` must come from kun_template_compile and not be used again. Null is fine.
#[no_mangle]
pub unsafe extern "C" fn kun_template_free(handle: *mut Template) {
    if !handle.is_null() {
        drop(Box::from_raw(handle));
    }
}

/// # Safety
/// `string` must come from this library and not be used again.
#[no_mangle]
pub unsafe extern "C" fn kun_bridge_string_free(string: OwnedString) {
    if !string.data.is_null() {
        drop(Vec::from_raw_parts(
            string.data,
            string.size,
            string.capacity,
        ));
    }
}
