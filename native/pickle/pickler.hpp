// Pickles state dicts with the same bytes as Python's pickler and torch's reductions in protocol 2, but in C++.
//
// It takes exact dicts, OrderedDicts, lists, tuples, strings, numbers, dtypes, and plain strided tensors and
// parameters. It leaves anything else to Python and torch.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fastio {

class Pickler {
  public:
    // `names`: the pickle bytes of each global (b"cmodule\nname\n"). `storages`: the storage class of each dtype.
    // `rebuild`: the functions that rebuild a tensor and a parameter. `locate` returns the location tag of a storage;
    // if `cpu` is not None, it is the tag of all CPU storages. `devices`: the other types of device whose tensors torch
    // reduces as it does the CPU's.
    Pickler(nanobind::dict names, nanobind::dict storages, nanobind::tuple rebuild, nanobind::object locate,
            nanobind::object cpu, nanobind::frozenset devices);

    // Pickles the object. Returns false if it holds an unsupported type. Throws Python's exceptions.
    bool run(nanobind::handle object);

    const std::string& data() const { return data_; }
    // A tuple (record name, storage, nbytes) for each storage, in the order of their keys.
    nanobind::list storages() const { return found_; }
    // Whether a storage ends within an element, which is left out.
    bool trimmed() const { return trimmed_; }

  private:
    // Interned attribute names, created once because every tensor is asked for them.
    struct AttributeNames {
        const nanobind::object backward_hooks, cdata, data, data_ptr, device, dict, dtype, is_conj, is_cpu, is_neg,
            is_nested, is_quantized, itemsize, layout, nbytes, reduce, requires_grad, size, storage, storage_offset,
            stride, type, untyped_storage;
        AttributeNames();
    };

    bool save(nanobind::handle value);
    bool save_new(nanobind::handle value);
    bool text(nanobind::handle value);
    bool integer(nanobind::handle value);
    void write(int64_t value);
    bool real(nanobind::handle value);
    bool tuple(nanobind::handle value, bool is_shared);
    bool list(nanobind::handle value);
    bool dict(nanobind::handle value);
    bool ordered_dict(nanobind::handle value);
    bool no_hooks();
    bool global(nanobind::handle value);
    bool tensor(nanobind::handle value, bool is_shared);
    bool parameter(nanobind::handle value);
    bool storage(nanobind::handle value, nanobind::handle dtype, bool is_cpu);
    bool is_plain(nanobind::handle value, bool& is_cpu) const;

    void op(uint8_t code) { data_.push_back(static_cast<char>(code)); }
    void number(uint64_t value, size_t nbytes);
    void write_indexed(uint8_t near, uint8_t far, uint64_t index);
    // Called around each item of a container: they write a mark where a batch begins, and the opcode that adds the item
    // (`one`) or the batch (`many`) to the container.
    void before_item(Py_ssize_t index, bool is_alone);
    void after_item(Py_ssize_t index, bool is_alone, bool is_last, uint8_t one, uint8_t many);
    // The memo numbers objects as they are written. put_new() only counts an object that cannot occur again.
    void put(nanobind::handle value);
    void put_new();
    bool get(nanobind::handle value);

    nanobind::dict names_, classes_;
    nanobind::frozenset devices_;
    nanobind::object rebuild_tensor_, rebuild_parameter_, locate_, cpu_;
    nanobind::object ordered_dict_, tensor_, parameter_, dtype_, strided_;
    const AttributeNames attributes_;
    std::string data_;
    std::unordered_map<PyObject*, uint32_t> memo_;
    std::vector<nanobind::object> kept_;                     // keeps alive the objects whose addresses are in the memo
    uint64_t count_ = 0;                                     // objects numbered so far
    std::unordered_map<uint64_t, nanobind::object> keys_;    // by the address of the storage object
    std::unordered_map<uint64_t, nanobind::object> dtypes_;  // by the address of the storage's bytes
    nanobind::list found_;
    bool trimmed_ = false;
    unsigned depth_ = 0;
};

}  // namespace fastio
