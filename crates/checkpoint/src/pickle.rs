//! Reading the pickle in a PyTorch file, which describes its tensors.
//!
//! A pickle is a program for a stack machine that may import and call anything. This interpreter runs nothing: it knows the
//! few calls that make tensors, and passes over all others.
//!
//! Values are kept in one list and refer to each other by index. Deep nesting, values that contain themselves, and values that
//! are repeated a million times therefore cost no more than the bytes that describe them.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// The index of a value.
type Id = usize;

/// Tensors of PyTorch have at most 64 dimensions; the bound keeps many tensors from sharing one long tuple of sizes.
const MOST_DIMENSIONS: usize = 64;

/// No import has a longer name.
const LONGEST_NAME: usize = 255;

/// Dictionaries nested deeper than this are not searched for weights.
const DEEPEST_KEY: usize = 6;

/// A value as far as weights need it.
#[derive(Debug)]
enum Value {
    Int(i64),
    Text(Arc<str>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Arc<Storage>),
    Tensor(PickledTensor),
    /// A tensor of a kind that weights cannot have, such as a sparse one: the function that makes it.
    OtherTensor(Arc<str>),
    /// Anything else: none, truth values, floats, lists, bytes, settings.
    Inert,
}

/// What an import stands for.
#[derive(Clone, Debug)]
enum Global {
    Dict,
    RebuildTensor,
    /// With the dtype as an argument, which older versions have in the storage.
    RebuildTensorV3,
    RebuildParameter,
    RebuildFromType,
    /// A storage class, such as `FloatStorage`.
    Storage(Arc<str>),
    /// A dtype, such as `float32`.
    Dtype(Arc<str>),
    /// Harmless and often saved beside weights.
    Harmless,
    Other(Arc<str>),
}

/// The data of tensors: an entry of the archive.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    /// PyTorch's name of the type, such as `FloatStorage`; `UntypedStorage` is counted in bytes.
    pub(crate) class: Arc<str>,
    /// Name of the entry.
    pub(crate) key: Arc<str>,
    /// Elements in it.
    pub(crate) count: usize,
}

/// A view into a storage. Offset and strides are in elements.
#[derive(Clone, Debug)]
pub(crate) struct PickledTensor {
    pub(crate) storage: Arc<Storage>,
    /// The dtype, where it is not that of the storage.
    pub(crate) dtype: Option<Arc<str>>,
    pub(crate) offset: usize,
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<usize>,
}

/// A value of a dictionary that is a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found<'a> {
    Tensor(&'a PickledTensor),
    /// Made by a function that weights cannot be made by.
    Other(&'a str),
}

/// Why a pickle cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PickleError {
    #[error("its pickle ends too early")]
    Ended,
    #[error("its pickle holds the instruction {0:#04x}, which weights do not need")]
    Instruction(u8),
    #[error("its pickle is malformed: {0}")]
    Malformed(&'static str),
}

type Result<T> = std::result::Result<T, PickleError>;

/// What an import stands for. Whatever is not known is passed over where it is called.
fn global(module: &str, name: &str) -> Result<Global> {
    const DTYPES: [&str; 5] = ["float", "bfloat", "int", "uint", "complex"];
    if module.len() > LONGEST_NAME || name.len() > LONGEST_NAME {
        return Err(PickleError::Malformed("the name of an import is too long"));
    }
    Ok(match (module, name) {
        ("collections", "OrderedDict" | "defaultdict" | "Counter") => Global::Dict,
        ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
        ("torch._utils", "_rebuild_tensor_v3") => Global::RebuildTensorV3,
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Global::RebuildParameter,
        ("torch._tensor", "_rebuild_from_type_v2") => Global::RebuildFromType,
        ("torch" | "torch.storage", class) if class.ends_with("Storage") => Global::Storage(class.into()),
        ("torch", dtype) if dtype == "bool" || DTYPES.iter().any(|start| dtype.starts_with(start)) => {
            Global::Dtype(dtype.into())
        }
        ("torch.nn.parameter", "Parameter" | "Buffer")
        | ("torch", "Size" | "device" | "layout" | "strided" | "memory_format" | "contiguous_format")
        | ("torch.serialization", "_get_layout")
        | ("argparse", "Namespace")
        | ("_codecs", "encode")
        | ("datetime" | "pathlib", _)
        | ("numpy", "dtype" | "ndarray")
        | ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar" | "_reconstruct")
        | ("builtins" | "__builtin__", "set" | "frozenset" | "complex" | "bytearray" | "slice" | "range") => {
            Global::Harmless
        }
        _ => Global::Other(format!("{module}.{name}").into()),
    })
}

/// The values of a pickle.
#[derive(Debug)]
pub(crate) struct Pickle {
    values: Vec<Value>,
    root: Id,
    passed_over: BTreeSet<Arc<str>>,
}

impl Pickle {
    /// Reads a pickle of protocol 2 or later.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let mut machine = Machine {
            bytes,
            // Inert values and empty tuples are many, and each is the same.
            values: vec![Value::Inert, Value::Tuple(Vec::new())],
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            passed_over: BTreeSet::new(),
        };
        while machine.step()? {}
        let root = machine.pop()?;
        Ok(Self { values: machine.values, root, passed_over: machine.passed_over })
    }

    /// Imports that were called and are not known here.
    pub(crate) fn passed_over(&self) -> Vec<String> {
        self.passed_over.iter().map(ToString::to_string).collect()
    }

    /// The tensors of every dictionary that is reached from the outermost one through dictionaries, each with the keys that
    /// lead to it, separated by dots. The outermost one comes first.
    pub(crate) fn groups(&self) -> Vec<(String, Vec<(&str, Found<'_>)>)> {
        let mut groups = Vec::new();
        let mut seen = HashSet::from([self.root]);
        let mut queue = VecDeque::from([(self.root, String::new(), 0)]);
        while let Some((dict, key, depth)) = queue.pop_front() {
            let Value::Dict(entries) = &self.values[dict] else { continue };
            let mut tensors = Vec::new();
            for &(name, value) in entries {
                let Value::Text(name) = &self.values[name] else { continue };
                match &self.values[value] {
                    Value::Tensor(tensor) => tensors.push((&**name, Found::Tensor(tensor))),
                    Value::OtherTensor(function) => tensors.push((&**name, Found::Other(function))),
                    Value::Dict(_) if depth < DEEPEST_KEY && name.len() <= LONGEST_NAME && seen.insert(value) => {
                        let key = if key.is_empty() { name.to_string() } else { format!("{key}.{name}") };
                        queue.push_back((value, key, depth + 1));
                    }
                    _ => {}
                }
            }
            groups.push((key, tensors));
        }
        groups
    }
}

struct Machine<'a> {
    /// What is still to be read.
    bytes: &'a [u8],
    values: Vec<Value>,
    stack: Vec<Id>,
    /// Heights of the stack where lists of items begin.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    passed_over: BTreeSet<Arc<str>>,
}

/// The value of everything that is of no interest.
const INERT: Id = 0;

/// The empty tuple.
const EMPTY: Id = 1;

impl Machine<'_> {
    /// Reads one instruction; whether another follows.
    fn step(&mut self) -> Result<bool> {
        let [instruction] = self.array()?;
        match instruction {
            b'.' => return Ok(false),
            0x80 => drop(self.array::<1>()?), // PROTO
            0x95 => drop(self.array::<8>()?), // FRAME
            b'(' => self.marks.push(self.stack.len()),
            // NONE, NEWTRUE, NEWFALSE, EMPTY_LIST, EMPTY_SET
            b'N' | 0x88 | 0x89 | b']' | 0x8f => self.stack.push(INERT),
            b'G' => {
                self.array::<8>()?;
                self.stack.push(INERT);
            }
            b'K' | b'M' | b'J' | 0x8a | 0x8b => self.integer(instruction)?,
            // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8, BINSTRING, SHORT_BINSTRING
            b'X' | 0x8c | 0x8d | b'T' | b'U' => {
                // Python's strings may hold what UTF-8 cannot; no tensor has such a name.
                match std::str::from_utf8(self.sized(instruction)?).map(Arc::from) {
                    Ok(text) => self.push(Value::Text(text)),
                    Err(_) => self.stack.push(INERT),
                }
            }
            // BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8
            b'B' | b'C' | 0x8e | 0x96 => {
                self.sized(instruction)?;
                self.stack.push(INERT);
            }
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memo(instruction)?,
            b')' => self.stack.push(EMPTY),
            0x85..=0x87 => {
                let start = self.height(usize::from(instruction - 0x84))?;
                self.tuple(start);
            }
            b't' => {
                let start = self.mark()?;
                self.tuple(start);
            }
            // LIST, FROZENSET
            b'l' | 0x91 => {
                let start = self.mark()?;
                self.stack.truncate(start);
                self.stack.push(INERT);
            }
            b'}' => self.push(Value::Dict(Vec::new())),
            b'd' => {
                let start = self.mark()?;
                let items = self.stack.split_off(start);
                self.push(Value::Dict(Vec::new()));
                self.extend(&items)?;
            }
            b's' => {
                let start = self.height(2)?;
                let items = self.stack.split_off(start);
                self.extend(&items)?;
            }
            b'u' => {
                let start = self.mark()?;
                let items = self.stack.split_off(start);
                self.extend(&items)?;
            }
            // APPENDS, ADDITEMS, POP_MARK; APPEND, BUILD, POP: items of lists and attributes of objects are of no interest.
            b'e' | 0x90 | b'1' => {
                let start = self.mark()?;
                self.stack.truncate(start);
            }
            b'a' | b'b' | b'0' => drop(self.pop()?),
            // DUP
            b'2' => {
                let top = self.pop()?;
                self.stack.extend([top, top]);
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                let global = global(&module, &name)?;
                self.push(Value::Global(global));
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Text(module), Value::Text(name)) = (&self.values[module], &self.values[name]) else {
                    return Err(PickleError::Malformed("an import has no name"));
                };
                let global = global(&module.clone(), &name.clone())?;
                self.push(Value::Global(global));
            }
            b'Q' => {
                let id = self.pop()?;
                match self.storage(id) {
                    Some(storage) => self.push(Value::Storage(Arc::new(storage))),
                    None => self.stack.push(INERT),
                }
            }
            // REDUCE, NEWOBJ
            b'R' | 0x81 => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                let result = self.call(callable, arguments)?;
                self.stack.push(result);
            }
            // NEWOBJ_EX, with keyword arguments.
            0x92 => {
                let (_, arguments, callable) = (self.pop()?, self.pop()?, self.pop()?);
                let result = self.call(callable, arguments)?;
                self.stack.push(result);
            }
            other => return Err(PickleError::Instruction(other)),
        }
        Ok(true)
    }

    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(PickleError::Ended)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(PickleError::Ended)?;
        self.bytes = rest;
        Ok(*taken)
    }

    /// Bytes that follow their own number, whose width depends on the instruction.
    fn sized(&mut self, instruction: u8) -> Result<&[u8]> {
        let count = match instruction {
            0x8c | b'U' | b'C' => u8::from_le_bytes(self.array()?) as u64,
            0x8d | 0x8e | 0x96 => u64::from_le_bytes(self.array()?),
            _ => u32::from_le_bytes(self.array()?) as u64,
        };
        self.take(usize::try_from(count).map_err(|_| PickleError::Ended)?)
    }

    fn line(&mut self) -> Result<String> {
        let end = self.bytes.iter().position(|&byte| byte == b'\n').ok_or(PickleError::Ended)?;
        let line = String::from_utf8_lossy(self.take(end)?).into_owned();
        self.array::<1>()?;
        Ok(line)
    }

    /// BININT1, BININT2, BININT, LONG1, LONG4. Integers of more than 64 bits belong to no tensor.
    fn integer(&mut self, instruction: u8) -> Result<()> {
        let value = match instruction {
            b'K' => Value::Int(u8::from_le_bytes(self.array()?).into()),
            b'M' => Value::Int(u16::from_le_bytes(self.array()?).into()),
            b'J' => Value::Int(i32::from_le_bytes(self.array()?).into()),
            _ => {
                let count = match instruction {
                    0x8a => u8::from_le_bytes(self.array()?) as usize,
                    _ => u32::from_le_bytes(self.array()?) as usize,
                };
                let digits = self.take(count)?;
                let negative = digits.last().is_some_and(|&byte| byte >= 0x80);
                let mut word = [if negative { 0xff } else { 0 }; 8];
                match word.get_mut(..count) {
                    Some(low) => {
                        low.copy_from_slice(digits);
                        Value::Int(i64::from_le_bytes(word))
                    }
                    None => Value::Inert,
                }
            }
        };
        self.push(value);
        Ok(())
    }

    /// The instructions of PUT remember the top of the stack, those of GET push it again.
    fn memo(&mut self, instruction: u8) -> Result<()> {
        let key = match instruction {
            b'q' | b'h' => u8::from_le_bytes(self.array()?) as u32,
            0x94 => self.memo.len() as u32,
            _ => u32::from_le_bytes(self.array()?),
        };
        if matches!(instruction, b'h' | b'j') {
            let id = self.memo.get(&key).ok_or(PickleError::Malformed("it refers to what was not remembered"))?;
            self.stack.push(*id);
        } else {
            let top = self.stack.last().ok_or(PickleError::Malformed("its stack is empty"))?;
            self.memo.insert(key, *top);
        }
        Ok(())
    }

    fn add(&mut self, value: Value) -> Id {
        self.values.push(value);
        self.values.len() - 1
    }

    fn push(&mut self, value: Value) {
        let id = self.add(value);
        self.stack.push(id);
    }

    /// The height of the stack without its upper `count` values, none of which may lie below a mark.
    fn height(&self, count: usize) -> Result<usize> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let height = self.stack.len().checked_sub(count).filter(|&height| height >= floor);
        height.ok_or(PickleError::Malformed("its stack is empty"))
    }

    fn pop(&mut self) -> Result<Id> {
        self.height(1)?;
        self.stack.pop().ok_or(PickleError::Malformed("its stack is empty"))
    }

    fn mark(&mut self) -> Result<usize> {
        self.marks.pop().ok_or(PickleError::Malformed("it ends a list that it did not begin"))
    }

    fn tuple(&mut self, start: usize) {
        let items = self.stack.split_off(start);
        self.push(Value::Tuple(items));
    }

    /// Adds keys and values in turn to the dictionary on top of the stack.
    fn extend(&mut self, items: &[Id]) -> Result<()> {
        let top = *self.stack.last().ok_or(PickleError::Malformed("its stack is empty"))?;
        let (pairs, rest) = items.as_chunks();
        if !rest.is_empty() {
            return Err(PickleError::Malformed("a dictionary has a key without a value"));
        }
        if let Value::Dict(entries) = &mut self.values[top] {
            entries.extend(pairs.iter().map(|&[key, value]| (key, value)));
        }
        Ok(())
    }

    fn items(&self, tuple: Id) -> &[Id] {
        if let Value::Tuple(items) = &self.values[tuple] { items } else { &[] }
    }

    /// The persistent id `('storage', class, key, device, count)`.
    fn storage(&self, id: Id) -> Option<Storage> {
        if let [_, class, key, _, count] = *self.items(id)
            && let (Value::Global(Global::Storage(class)), Value::Text(key), Value::Int(count)) =
                (&self.values[class], &self.values[key], &self.values[count])
        {
            return Some(Storage { class: class.clone(), key: key.clone(), count: usize::try_from(*count).ok()? });
        }
        None
    }

    /// What a call would return, as far as it is of interest. Nothing is called.
    fn call(&mut self, callable: Id, arguments: Id) -> Result<Id> {
        let Value::Global(global) = &self.values[callable] else { return Ok(INERT) };
        let global = global.clone();
        let first = self.items(arguments).first().copied();
        let value = match (&global, first) {
            (Global::Dict, _) => Value::Dict(Vec::new()),
            (Global::RebuildTensor | Global::RebuildTensorV3, _) => self.tensor(&global, arguments)?,
            // Both wrap a tensor: the first one that is made already, the second a call that makes it.
            (Global::RebuildParameter, Some(tensor)) => return Ok(tensor),
            (Global::RebuildFromType, Some(function)) => match (&self.values[function], self.items(arguments).get(2)) {
                (Value::Global(inner), Some(&arguments)) => self.tensor(&inner.clone(), arguments)?,
                _ => Value::OtherTensor("torch._tensor._rebuild_from_type_v2".into()),
            },
            (Global::Other(name), _) if name.starts_with("torch._utils._rebuild") => Value::OtherTensor(name.clone()),
            (Global::Other(name), _) => {
                self.passed_over.insert(name.clone());
                // Classes that extend dictionaries get their items afterwards.
                Value::Dict(Vec::new())
            }
            _ => return Ok(INERT),
        };
        Ok(self.add(value))
    }

    /// The tensor that `function` makes of `(storage, offset, size, stride, requires_grad, backward_hooks, dtype, ...)`.
    fn tensor(&self, function: &Global, arguments: Id) -> Result<Value> {
        let sizes = |tuple: Id| {
            let items = self.items(tuple);
            if items.len() > MOST_DIMENSIONS {
                return Err(PickleError::Malformed("a tensor has too many dimensions"));
            }
            items.iter().map(|&id| self.size(id)).collect::<Result<Vec<_>>>()
        };
        let dtype = match (function, self.items(arguments).get(6).map(|&dtype| &self.values[dtype])) {
            (Global::RebuildTensor, _) => None,
            (Global::RebuildTensorV3, Some(Value::Global(Global::Dtype(dtype)))) => Some(dtype.clone()),
            _ => return Ok(Value::OtherTensor("an unknown function".into())),
        };
        if let [storage, offset, shape, strides, ..] = *self.items(arguments)
            && let Value::Storage(storage) = &self.values[storage]
        {
            let (shape, strides) = (sizes(shape)?, sizes(strides)?);
            if shape.len() == strides.len() {
                let offset = self.size(offset)?;
                return Ok(Value::Tensor(PickledTensor { storage: storage.clone(), dtype, offset, shape, strides }));
            }
        }
        Err(PickleError::Malformed("a tensor is not described as PyTorch does"))
    }

    fn size(&self, id: Id) -> Result<usize> {
        match self.values[id] {
            Value::Int(size) => usize::try_from(size).map_err(|_| PickleError::Malformed("a size is negative")),
            _ => Err(PickleError::Malformed("a size is not a whole number")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn deep_nesting_and_repetition_cost_no_more_than_their_bytes() {
        // A million tuples in each other.
        let deep = [&b"\x80\x02)"[..], &vec![0x85; 1_000_000], b"."].concat();
        assert_eq!(Pickle::read(&deep).unwrap().values.len(), 1_000_002);
        // A tuple of two references to the one before, forty times over: 2^40 values if they were copied.
        let doubling = [&b"\x80\x02)"[..], &b"q\x00h\x00\x86".repeat(40), b"."].concat();
        assert_eq!(Pickle::read(&doubling).unwrap().values.len(), 42);
        // A dictionary that contains itself.
        let own = b"\x80\x02}q\x00\x8c\x05modelh\x00s.";
        let pickle = Pickle::read(own).unwrap();
        assert_eq!(pickle.groups().len(), 1);
        // Dictionaries of two references to the one before: each is searched once.
        let both = b"(\x8c\x01ah\x00\x8c\x01bh\x00dq\x00";
        let dicts = [&b"\x80\x02}q\x00"[..], &both.repeat(40), b"."].concat();
        assert!(Pickle::read(&dicts).unwrap().groups().len() <= 41);
    }

    /// 160 kB that once made over 4 GB: every call copied one long tuple of sizes.
    #[test]
    fn calls_over_one_long_tuple_cost_no_more_than_their_bytes() {
        let start = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x01(\x8c\x01sctorch\nFloatStorage\n\x8c\x010\x8c\x03cpuK\x08tQq\x02(";
        let tuple = [&b"K\x01".repeat(30_000)[..], b"tq\x03"].concat();
        let calls = b"h\x01(h\x02K\x00h\x03h\x03tR0".repeat(10_000);
        let pickle = [&start[..], &tuple, &calls, b"N."].concat();
        let error = Pickle::read(&pickle).unwrap_err();
        assert_eq!(error, PickleError::Malformed("a tensor has too many dimensions"));
        // So does a long name that is imported again and again.
        let name = [&b"\x80\x02X"[..], &60_000_u32.to_le_bytes(), &b"a".repeat(60_000), b"q\x00"].concat();
        let pickle = [&name[..], &b"h\x00h\x00\x930".repeat(10_000), b"N."].concat();
        assert_eq!(Pickle::read(&pickle).unwrap_err(), PickleError::Malformed("the name of an import is too long"));
    }

    #[test]
    fn integers_have_any_width() {
        for (bytes, expected) in [
            (&b"K\xff."[..], 255),
            (b"M\xff\xff.", 65535),
            (b"J\xff\xff\xff\xff.", -1),
            (b"\x8a\x00.", 0),
            (b"\x8a\x02\xff\x7f.", 32767),
            (b"\x8a\x01\x80.", -128),
            (b"\x8b\x05\x00\x00\x00\x00\x00\x00\x00\x01.", 1 << 32),
        ] {
            let pickle = Pickle::read(bytes).unwrap();
            assert!(matches!(pickle.values[pickle.root], Value::Int(value) if value == expected), "{bytes:?}");
        }
        let pickle = Pickle::read(b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.").unwrap();
        assert!(matches!(pickle.values[pickle.root], Value::Inert));
    }

    #[test]
    fn nothing_is_called_and_what_is_passed_over_is_named() {
        for (bytes, name) in [
            (&b"cos\nsystem\n\x8c\x04true\x85R."[..], "os.system"),
            (b"cbuiltins\neval\n\x8c\x01a\x85R.", "builtins.eval"),
            (b"\x8c\x08builtins\x8c\x04exec\x93)\x81.", "builtins.exec"),
            (b"ctorch.hub\nload\n)}\x92.", "torch.hub.load"),
        ] {
            assert_eq!(Pickle::read(bytes).unwrap().passed_over(), [name]);
        }
        // What is often saved beside weights is not worth a word.
        for bytes in [&b"cpathlib\nPosixPath\n)R."[..], b"ccollections\nCounter\n)R.", b"ctorch\nint64\n."] {
            assert!(Pickle::read(bytes).unwrap().passed_over().is_empty());
        }
    }

    proptest! {
        #[test]
        fn no_pickle_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Pickle::read(&bytes);
        }

        /// Instructions that occur, in any order: random bytes seldom get far.
        #[test]
        fn no_order_of_instructions_panics(instructions in prop::collection::vec(
            prop::sample::select(vec![
                &b"("[..], b")", b"}", b"]", b"N", b"K\x02", b"\x8c\x01a", b"\x8c\x05model", b"q\x00", b"q\x01",
                b"h\x00", b"h\x01", b"\x85", b"\x86", b"\x87", b"t", b"l", b"d", b"s", b"u", b"a", b"e", b"b", b"0",
                b"Q", b"R", b"\x81", b"\x93", b"\x94", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x8a\x01\xff",
                b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_parameter\n",
                b"ctorch._tensor\n_rebuild_from_type_v2\n", b"ctorch\nFloatStorage\n", b"ccollections\nOrderedDict\n",
            ]),
            0..60,
        )) {
            if let Ok(pickle) = Pickle::read(&[instructions.concat(), b".".to_vec()].concat()) {
                pickle.groups();
            }
        }
    }
}
