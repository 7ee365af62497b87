"""The tables of an Nsight Systems SQLite export, for the three export schemas that the samples are written in.

Names, types and constraints of columns as the tool's versions 2022.4, 2023.4 and 2026.2 export them. A column is
written ``name``, with ``!`` where it may not be NULL and ``:TEXT`` or ``:REAL`` where it is not an INTEGER.
"""

from __future__ import annotations

from dataclasses import dataclass

ACTIVITY = "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid "
KERNEL = (
    ACTIVITY
    + """demangledName! shortName! mangledName launchType cacheConfig registersPerThread! gridX! gridY! gridZ! blockX!
    blockY! blockZ! staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId!
    sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig """
)
KERNEL_2026 = (
    KERNEL
    + """qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY clusterZ clusterSchedulingPolicy
    maxPotentialClusterSize maxActiveClusters sharedMemoryRequestedPercentage tensorSizeMinusOneElements!:TEXT"""
)
MEMCPY = (
    ACTIVITY
    + """bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId
    migrationCause graphNodeId virtualAddress"""
)
NVTX = """start! end eventType! rangeId category color text:TEXT globalTid endGlobalTid textId domainId uint64Value
    int64Value doubleValue:REAL uint32Value int32Value floatValue:REAL jsonTextId jsonText:TEXT"""
GPU = """vmId! id! name:TEXT busLocation:TEXT isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount
    pwGpuId uuid:TEXT luid chipName:TEXT cuDevice ctxswDevPath:TEXT ctrlDevPath:TEXT revision nodeMask constantMemory
    maxIPC maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp
    asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ maxGridDimX
    maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor"""
MEMORY = """start! globalPid! deviceId! contextId! address! pc! bytes! memKind! memoryOperationType! name:TEXT
    correlationId localMemoryPoolAddress localMemoryPoolReleaseThreshold localMemoryPoolSize
    localMemoryPoolUtilizedSize importedMemoryPoolAddress importedMemoryPoolProcessId"""
NAME_VALUE = "name!:TEXT value:TEXT"

TABLES_2023: dict[str, str] = {
    "StringIds": "id!* value!:TEXT",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "META_DATA_CAPTURE": NAME_VALUE,
    "META_DATA_EXPORT": NAME_VALUE,
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT",
    "TARGET_INFO_GPU": GPU,
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "PROCESSES": "globalPid pid name:TEXT",
    "ThreadNames": "nameId! priority globalTid",
    "CUPTI_ACTIVITY_KIND_KERNEL": KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": MEMCPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": ACTIVITY + "value! bytes! graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ACTIVITY + "graphId! graphExecId!",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ACTIVITY + "syncType! eventId!",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": MEMORY,
    "NVTX_EVENTS": NVTX,
}
TABLES_2022 = {
    ("EXPORT_META_DATA" if name == "META_DATA_EXPORT" else name): columns.replace("greenContextId ", "")
    for name, columns in TABLES_2023.items()
    if name != "META_DATA_CAPTURE"
}
TABLES_2026 = TABLES_2023 | {
    "TARGET_INFO_SESSION_START_TIME": TABLES_2023["TARGET_INFO_SESSION_START_TIME"] + " systemClockNs",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid:TEXT numMultiprocessors",
    "CUPTI_ACTIVITY_KIND_KERNEL": KERNEL_2026,
    "CUPTI_ACTIVITY_KIND_MEMCPY": MEMCPY + " copyCount",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ACTIVITY + "deprecatedSyncType syncType! eventId! eventSyncId",
    "NVTX_EVENTS": NVTX + " binaryData:TEXT",
    "NVTX_PAYLOAD_SCHEMAS": "domainId schemaId name:TEXT type flags numEntries payloadSize alignTo",
}

ENUMS: dict[str, tuple[tuple[int, str, str], ...]] = {
    "ENUM_CUDA_MEMCPY_OPER": (
        (0, "CUDA_MEMCPY_KIND_UNKNOWN", "Unknown"),
        (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
        (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
        (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
        (9, "CUDA_MEMCPY_KIND_HTOH", "Host-to-Host"),
        (10, "CUDA_MEMCPY_KIND_PTOP", "Peer-to-Peer"),
    ),
    "ENUM_CUDA_MEM_KIND": (
        (0, "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "Pageable"),
        (1, "CUDA_MEMOPR_MEMORY_KIND_PINNED", "Pinned"),
        (2, "CUDA_MEMOPR_MEMORY_KIND_DEVICE", "Device"),
    ),
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": (
        (0, "CUDA_KERNEL_LAUNCH_TYPE_UNKNOWN", "Unknown"),
        (1, "CUDA_KERNEL_LAUNCH_TYPE_REGULAR", "Regular"),
    ),
    "ENUM_CUPTI_SYNC_TYPE": (
        (0, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN", "Unknown"),
        (1, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE", "Event sync"),
        (2, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT", "Stream wait sync"),
        (3, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE", "Stream sync"),
        (4, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE", "Context sync"),
    ),
    "ENUM_NSYS_EVENT_TYPE": (
        (33, "NvtxCategory", "NvtxCategory"),
        (34, "NvtxMark", "NvtxMark"),
        (59, "NvtxPushPopRange", "NvtxPushPopRange"),
        (60, "NvtxStartEndRange", "NvtxStartEndRange"),
        (75, "NvtxDomainCreate", "NvtxDomainCreate"),
        (76, "NvtxDomainDestroy", "NvtxDomainDestroy"),
    ),
}
"""The enumerations that `nsys stats` joins with, with the members that a training job can show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """One version of the export schema."""

    product: str
    version: str
    tables: dict[str, str]
    payload_blobs: bool = False
    """NVTX payloads reach the file, in `NVTX_EVENTS.binaryData`."""
    driver_rows: bool = False
    """Each launch has two rows with one correlation id: the runtime call and, inside it, the driver's."""

    @property
    def metadata_table(self) -> str:
        """Where the version stands."""
        return "META_DATA_EXPORT" if "META_DATA_EXPORT" in self.tables else "EXPORT_META_DATA"

    def metadata(self) -> list[tuple[str, str]]:
        """What the export says of itself, without names of hosts, users or files."""
        parts = self.version.split(".")
        return [
            ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
            ("EXPORT_PRODUCT_VERSION", self.product),
            ("EXPORT_PRODUCT_DATE", ".".join(self.product.split(".")[:2])),
            ("EXPORT_SCHEMA_VERSION", self.version),
            *zip(
                ("EXPORT_SCHEMA_VERSION_MAJOR", "EXPORT_SCHEMA_VERSION_MINOR", "EXPORT_SCHEMA_VERSION_MICRO"),
                parts,
                strict=True,
            ),
            ("EXPORT_PLATFORM", "linux-desktop"),
            ("EXPORT_ARCH", "x64"),
            ("EXPORT_PARAM_EXPORT_TYPE", "SQLite"),
        ]

    def create_statements(self) -> list[str]:
        """SQL that makes every table."""
        enums = dict.fromkeys(ENUMS, "id!* name:TEXT label:TEXT")
        return [f"CREATE TABLE {name} ({_columns(columns)})" for name, columns in (self.tables | enums).items()]

    def column_names(self, table: str) -> list[str]:
        """The columns of a table, in order."""
        return [column.split(":")[0].rstrip("!*") for column in self.tables[table].split()]


def _columns(text: str) -> str:
    made = []
    for column in text.split():
        name, _, kind = column.partition(":")
        key = " PRIMARY KEY" if name.endswith("*") else ""
        null = " NOT NULL" if "!" in name else ""
        made.append(f"{name.rstrip('!*')} {kind or 'INTEGER'}{null}{key}")
    return ", ".join(made)


NSYS_2022 = Schema(product="2022.4.2.1", version="3.0.0", tables=TABLES_2022, driver_rows=True)
NSYS_2023 = Schema(product="2023.4.4.54", version="3.7.2", tables=TABLES_2023)
NSYS_2026 = Schema(product="2026.2.1.210", version="3.25.0", tables=TABLES_2026, payload_blobs=True)
