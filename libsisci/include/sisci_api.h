/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * SISCI, API 2: segments, remote maps, DMA queues and interrupts between nodes.
 *
 * Each function has three names. A program uses the _ST_ spelling, or with _REENTRANT the _MT_
 * spelling, and with SISCI_PLAIN_NAMES the plain one. All three name one function, which several
 * threads may call. Flags and other numbers are data objects of the library.
 *
 * A program for API 1 is compiled with SISCI_API_1: sizes behind pointers are then unsigned int.
 */
#ifndef SISCI_API_H
#define SISCI_API_H

#include "sisci_types.h"
#include "sisci_error.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(SISCI_PLAIN_NAMES)
#define SISCI_FUNCTION(name) name
#elif defined(_REENTRANT)
#define SISCI_FUNCTION(name) _SISCI_PUBLIC_FUNC_MT_##name
#else
#define SISCI_FUNCTION(name) _SISCI_PUBLIC_FUNC_ST_##name
#endif

/* Library, descriptors and nodes */

void SISCI_FUNCTION(SCIInitialize)(unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCITerminate)(void);
void SISCI_FUNCTION(SCIOpen)(sci_desc_t *sd, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIClose)(sci_desc_t sd, unsigned flags, sci_error_t *error);
int SISCI_FUNCTION(SCIProbeNode)(sci_desc_t sd, unsigned adapter, unsigned node, unsigned flags,
    sci_error_t *error);
void SISCI_FUNCTION(SCIGetLocalNodeId)(unsigned adapter, unsigned *node, unsigned flags,
    sci_error_t *error);
void SISCI_FUNCTION(SCIGetNodeIdByAdapterName)(char *name, dis_nodeId_list_t *list,
    dis_virt_adapter_t *type, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIGetNodeInfoByAdapterName)(char *name, unsigned *adapter, dis_nodeId_list_t
    *list, dis_virt_adapter_t *type, unsigned flags, sci_error_t *error);
const char *SISCI_FUNCTION(SCIGetErrorString)(sci_error_t code);
const char *SISCI_FUNCTION(SCIGetAdapterTypeString)(unsigned type);
const char *SISCI_FUNCTION(SCIGetAdapterFamilyString)(unsigned family);
unsigned SISCI_FUNCTION(SCIGetCSRRegister)(sci_desc_t sd, unsigned adapter, unsigned node,
    unsigned offset, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCISetCSRRegister)(sci_desc_t sd, unsigned adapter, unsigned node, unsigned
    offset, unsigned value, unsigned flags, sci_error_t *error);
unsigned SISCI_FUNCTION(SCIGetLocalCSR)(sci_desc_t sd, unsigned adapter, unsigned offset, unsigned
    flags, sci_error_t *error);
void SISCI_FUNCTION(SCISetLocalCSR)(sci_desc_t sd, unsigned adapter, unsigned offset, unsigned
    value, unsigned flags, sci_error_t *error);

/* Queries */

void SISCI_FUNCTION(SCIQuery)(unsigned command, void *data, unsigned flags, sci_error_t *error);

/* Segments of this process */

void SISCI_FUNCTION(SCICreateSegment)(sci_desc_t sd, sci_local_segment_t *segment, unsigned id,
    size_t size, sci_cb_local_segment_t callback, void *arg, unsigned flags, sci_error_t *error);
size_t SISCI_FUNCTION(SCIGetLocalSegmentSize)(sci_local_segment_t segment);
unsigned SISCI_FUNCTION(SCIGetLocalSegmentId)(sci_local_segment_t segment);
void SISCI_FUNCTION(SCIPrepareSegment)(sci_local_segment_t segment, unsigned adapter, unsigned
    flags, sci_error_t *error);
void SISCI_FUNCTION(SCISetSegmentAvailable)(sci_local_segment_t segment, unsigned adapter,
    unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCISetSegmentUnavailable)(sci_local_segment_t segment, unsigned adapter,
    unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIRemoveSegment)(sci_local_segment_t segment, unsigned flags, sci_error_t
    *error);
sci_segment_cb_reason_t SISCI_FUNCTION(SCIWaitForLocalSegmentEvent)(sci_local_segment_t segment,
    unsigned *node, unsigned *adapter, unsigned timeout, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIRegisterSegmentMemory)(void *address, size_t size, sci_local_segment_t
    segment, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIAttachPhysicalMemory)(sci_ioaddr_t ioaddress, void *address, unsigned
    busNo, size_t size, sci_local_segment_t segment, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIShareSegment)(sci_local_segment_t segment, unsigned flags, sci_error_t
    *error);
void SISCI_FUNCTION(SCIAttachLocalSegment)(sci_desc_t sd, sci_local_segment_t *segment, unsigned
    id, size_t *size, sci_cb_local_segment_t callback, void *arg, unsigned flags, sci_error_t
    *error);

/* Segments of other processes, and mappings */

void SISCI_FUNCTION(SCIConnectSegment)(sci_desc_t sd, sci_remote_segment_t *segment, unsigned
    node, unsigned id, unsigned adapter, sci_cb_remote_segment_t callback, void *arg, unsigned
    timeout, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIDisconnectSegment)(sci_remote_segment_t segment, unsigned flags,
    sci_error_t *error);
size_t SISCI_FUNCTION(SCIGetRemoteSegmentSize)(sci_remote_segment_t segment);
unsigned SISCI_FUNCTION(SCIGetRemoteSegmentId)(sci_remote_segment_t segment);
unsigned SISCI_FUNCTION(SCIGetRemoteSegmentNodeId)(sci_remote_segment_t segment);
sci_segment_cb_reason_t SISCI_FUNCTION(SCIWaitForRemoteSegmentEvent)(sci_remote_segment_t segment,
    sci_error_t *status, unsigned timeout, unsigned flags, sci_error_t *error);
volatile void *SISCI_FUNCTION(SCIMapRemoteSegment)(sci_remote_segment_t segment, sci_map_t *map,
    size_t offset, size_t size, void *address, unsigned flags, sci_error_t *error);
void *SISCI_FUNCTION(SCIMapLocalSegment)(sci_local_segment_t segment, sci_map_t *map, size_t
    offset, size_t size, void *address, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIUnmapSegment)(sci_map_t map, unsigned flags, sci_error_t *error);
volatile void *SISCI_FUNCTION(SCIGetMapPointer)(sci_map_t map);
sci_ioaddr_t SISCI_FUNCTION(SCIGetMapPhysAddr)(sci_map_t map);
void SISCI_FUNCTION(SCIConnectSCISpace)(sci_desc_t sd, unsigned adapter, sci_remote_segment_t
    *segment, sci_address_t address, size_t size, unsigned flags, sci_error_t *error);

/* Sequences, barriers and copies */

void SISCI_FUNCTION(SCICreateMapSequence)(sci_map_t map, sci_sequence_t *sequence, unsigned flags,
    sci_error_t *error);
void SISCI_FUNCTION(SCIRemoveSequence)(sci_sequence_t sequence, unsigned flags, sci_error_t
    *error);
sci_sequence_status_t SISCI_FUNCTION(SCIStartSequence)(sci_sequence_t sequence, unsigned flags,
    sci_error_t *error);
sci_sequence_status_t SISCI_FUNCTION(SCICheckSequence)(sci_sequence_t sequence, unsigned flags,
    sci_error_t *error);
void SISCI_FUNCTION(SCIStoreBarrier)(sci_sequence_t sequence, unsigned flags);
void SISCI_FUNCTION(SCIFlushReadBuffers)(sci_sequence_t sequence);
void SISCI_FUNCTION(SCIFlush)(sci_sequence_t sequence, unsigned flags);
void SISCI_FUNCTION(SCIMemCpy)(sci_sequence_t sequence, void *memory, sci_map_t map, size_t
    offset, size_t size, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIMemCpy_dual)(sci_sequence_t sequence1, sci_sequence_t sequence2, void
    *memory, sci_map_t map1, sci_map_t map2, size_t offset, size_t size, unsigned flags,
    sci_error_t *error);
void SISCI_FUNCTION(SCIMemCopy)(void *memory, sci_map_t map, size_t offset, size_t size, unsigned
    flags, sci_error_t *error);
void SISCI_FUNCTION(SCIMemWrite)(void *memory, volatile void *remote, size_t size, unsigned flags,
    sci_error_t *error);
void SISCI_FUNCTION(SCITransferBlock)(sci_map_t source, size_t sourceOffset, sci_map_t target,
    size_t targetOffset, size_t size, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCITransferBlockAsync)(sci_map_t source, size_t sourceOffset, sci_map_t
    target, size_t targetOffset, size_t size, sci_block_transfer_t *block, sci_cb_block_transfer_t
    callback, void *arg, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIWaitForBlockTransfer)(sci_block_transfer_t block, unsigned timeout,
    unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIAbortBlockTransfer)(sci_block_transfer_t block, unsigned flags, sci_error_t
    *error);
void SISCI_FUNCTION(SCICacheSync)(sci_map_t map, void *address, size_t size, unsigned flags,
    sci_error_t *error);
unsigned SISCI_FUNCTION(GetSciMemCopyFunction)(void);
void SISCI_FUNCTION(SetSciMemCopyFunction)(unsigned number);

/* Interrupts */

void SISCI_FUNCTION(SCICreateInterrupt)(sci_desc_t sd, sci_local_interrupt_t *interrupt, unsigned
    adapter, unsigned *number, sci_cb_interrupt_t callback, void *arg, unsigned flags, sci_error_t
    *error);
void SISCI_FUNCTION(SCIRemoveInterrupt)(sci_local_interrupt_t interrupt, unsigned flags,
    sci_error_t *error);
void SISCI_FUNCTION(SCIWaitForInterrupt)(sci_local_interrupt_t interrupt, unsigned timeout,
    unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIConnectInterrupt)(sci_desc_t sd, sci_remote_interrupt_t *interrupt,
    unsigned node, unsigned adapter, unsigned number, unsigned timeout, unsigned flags,
    sci_error_t *error);
void SISCI_FUNCTION(SCIDisconnectInterrupt)(sci_remote_interrupt_t interrupt, unsigned flags,
    sci_error_t *error);
void SISCI_FUNCTION(SCITriggerInterrupt)(sci_remote_interrupt_t interrupt, unsigned flags,
    sci_error_t *error);
void SISCI_FUNCTION(SCICreateDataInterrupt)(sci_desc_t sd, sci_local_data_interrupt_t *interrupt,
    unsigned adapter, unsigned *number, sci_cb_data_interrupt_t callback, void *arg, unsigned
    flags, sci_error_t *error);
void SISCI_FUNCTION(SCIRemoveDataInterrupt)(sci_local_data_interrupt_t interrupt, unsigned flags,
    sci_error_t *error);
void SISCI_FUNCTION(SCIWaitForDataInterrupt)(sci_local_data_interrupt_t interrupt, void *data,
    unsigned *length, unsigned timeout, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIConnectDataInterrupt)(sci_desc_t sd, sci_remote_data_interrupt_t
    *interrupt, unsigned node, unsigned adapter, unsigned number, unsigned timeout, unsigned
    flags, sci_error_t *error);
void SISCI_FUNCTION(SCIDisconnectDataInterrupt)(sci_remote_data_interrupt_t interrupt, unsigned
    flags, sci_error_t *error);
void SISCI_FUNCTION(SCITriggerDataInterrupt)(sci_remote_data_interrupt_t interrupt, void *data,
    unsigned length, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIRegisterInterruptFlag)(unsigned adapter, sci_local_interrupt_t *interrupt,
    sci_local_segment_t segment, size_t offset, sci_cb_interrupt_t callback, void *arg, unsigned
    flags, sci_error_t *error);
void SISCI_FUNCTION(SCIEnableConditionalInterrupt)(sci_local_interrupt_t interrupt, unsigned
    flags, sci_error_t *error);
void SISCI_FUNCTION(SCIDisableConditionalInterrupt)(sci_local_interrupt_t interrupt, unsigned
    flags, sci_error_t *error);
void SISCI_FUNCTION(SCIGetConditionalInterruptTrigCounter)(sci_local_interrupt_t interrupt,
    unsigned *counter, unsigned flags, sci_error_t *error);

/* DMA queues */

void SISCI_FUNCTION(SCICreateDMAQueue)(sci_desc_t sd, sci_dma_queue_t *queue, unsigned adapter,
    unsigned maxEntries, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIRemoveDMAQueue)(sci_dma_queue_t queue, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIStartDmaTransfer)(sci_dma_queue_t queue, sci_local_segment_t local,
    sci_remote_segment_t remote, size_t localOffset, size_t size, size_t remoteOffset,
    sci_cb_dma_t callback, void *arg, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIStartDmaTransferVec)(sci_dma_queue_t queue, sci_local_segment_t local,
    sci_remote_segment_t remote, size_t count, dis_dma_vec_t *vector, sci_cb_dma_t callback, void
    *arg, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIStartDmaTransferMem)(sci_dma_queue_t queue, void *local,
    sci_remote_segment_t remote, size_t size, size_t remoteOffset, sci_cb_dma_t callback, void
    *arg, unsigned flags, sci_error_t *error);
sci_dma_queue_state_t SISCI_FUNCTION(SCIDMAQueueState)(sci_dma_queue_t queue);
sci_dma_queue_state_t SISCI_FUNCTION(SCIWaitForDMAQueue)(sci_dma_queue_t queue, unsigned timeout,
    unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIAbortDMAQueue)(sci_dma_queue_t queue, unsigned flags, sci_error_t *error);
sci_dma_queue_state_t SISCI_FUNCTION(SCIEnqueueDMATransfer)(sci_dma_queue_t queue,
    sci_local_segment_t local, sci_remote_segment_t remote, size_t localOffset, size_t
    remoteOffset, size_t size, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIPostDMAQueue)(sci_dma_queue_t queue, sci_cb_dma_t callback, void *arg,
    unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIResetDMAQueue)(sci_dma_queue_t queue, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIphDmaEnqueue)(sci_dma_queue_t queue, unsigned size, sci_ioaddr_t ioaddress,
    unsigned node, unsigned high, unsigned low, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIphDmaStart)(sci_dma_queue_t queue, sci_cb_dma_t callback, void *arg,
    unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIRequestDMAChannel)(sci_desc_t sd, sci_dma_channel_t *channel, unsigned
    adapter, sci_dma_type_t type, unsigned id, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIAssignDMAChannel)(sci_dma_channel_t channel, sci_dma_queue_t queue,
    unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIReturnDMAChannel)(sci_dma_channel_t channel, sci_error_t *error);
void SISCI_FUNCTION(SCIPrepareLocalSegmentForDMA)(sci_dma_channel_t channel, sci_local_segment_t
    segment, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIUnprepareLocalSegmentForDMA)(sci_dma_channel_t channel, sci_local_segment_t
    segment, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIPrepareRemoteSegmentForDMA)(sci_dma_channel_t channel, sci_remote_segment_t
    segment, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIUnprepareRemoteSegmentForDMA)(sci_dma_channel_t channel,
    sci_remote_segment_t segment, unsigned flags, sci_error_t *error);

/* Devices: SCI_ERR_NOT_SUPPORTED without hardware */

void SISCI_FUNCTION(SCIBorrowDevice)(sci_desc_t sd, sci_device_t *device, uint64_t fdid, unsigned
    flags, sci_error_t *error);
void SISCI_FUNCTION(SCIReturnDevice)(sci_device_t device, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIReleaseExclusiveBorrow)(sci_device_t device, unsigned flags, sci_error_t
    *error);
int SISCI_FUNCTION(SCIGetDeviceList)(sci_desc_t sd, uint64_t *list, unsigned length, const void
    *filter, unsigned flags, sci_error_t *error);
uint64_t SISCI_FUNCTION(SCIGetFabricDeviceId)(sci_device_t device, sci_error_t *error);
void SISCI_FUNCTION(SCIConnectDeviceSegment)(sci_device_t device, sci_remote_segment_t *segment,
    unsigned id, sci_memory_type_t type, sci_cb_remote_segment_t callback, void *arg, unsigned
    flags, sci_error_t *error);
void SISCI_FUNCTION(SCIConnectDeviceSegmentPath)(sci_device_t device, sci_remote_segment_t
    *segment, unsigned id, sci_memory_type_t type, const char *path, sci_cb_remote_segment_t
    callback, void *arg, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIConnectDeviceMemory)(sci_desc_t sd, sci_remote_segment_t *segment, unsigned
    adapter, sci_device_t device, unsigned number, sci_cb_remote_segment_t callback, void *arg,
    unsigned timeout, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCICreateDeviceSegment)(sci_device_t device, unsigned id, size_t size,
    sci_memory_type_t type, sci_memory_access_t access, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIMapLocalSegmentForDevice)(sci_local_segment_t segment, unsigned adapter,
    sci_device_t device, sci_ioaddr_t *ioaddress, size_t offset, size_t size, unsigned flags,
    sci_error_t *error);
void SISCI_FUNCTION(SCIUnmapLocalSegmentForDevice)(sci_local_segment_t segment, unsigned adapter,
    sci_device_t device, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIMapRemoteSegmentForDevice)(sci_remote_segment_t segment, sci_device_t
    device, sci_ioaddr_t *ioaddress, size_t offset, size_t size, unsigned flags, sci_error_t
    *error);
void SISCI_FUNCTION(SCIUnmapRemoteSegmentForDevice)(sci_remote_segment_t segment, sci_device_t
    device, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIRegisterPCIeRequester)(sci_desc_t sd, unsigned adapter, unsigned bus,
    unsigned devfn, unsigned flags, sci_error_t *error);
void SISCI_FUNCTION(SCIUnregisterPCIeRequester)(sci_desc_t sd, unsigned adapter, unsigned bus,
    unsigned devfn, unsigned flags, sci_error_t *error);

#ifndef SISCI_PLAIN_NAMES
#define SCIInitialize SISCI_FUNCTION(SCIInitialize)
#define SCITerminate SISCI_FUNCTION(SCITerminate)
#define SCIOpen SISCI_FUNCTION(SCIOpen)
#define SCIClose SISCI_FUNCTION(SCIClose)
#define SCIProbeNode SISCI_FUNCTION(SCIProbeNode)
#define SCIGetLocalNodeId SISCI_FUNCTION(SCIGetLocalNodeId)
#define SCIGetNodeIdByAdapterName SISCI_FUNCTION(SCIGetNodeIdByAdapterName)
#define SCIGetNodeInfoByAdapterName SISCI_FUNCTION(SCIGetNodeInfoByAdapterName)
#define SCIGetErrorString SISCI_FUNCTION(SCIGetErrorString)
#define SCIGetAdapterTypeString SISCI_FUNCTION(SCIGetAdapterTypeString)
#define SCIGetAdapterFamilyString SISCI_FUNCTION(SCIGetAdapterFamilyString)
#define SCIGetCSRRegister SISCI_FUNCTION(SCIGetCSRRegister)
#define SCISetCSRRegister SISCI_FUNCTION(SCISetCSRRegister)
#define SCIGetLocalCSR SISCI_FUNCTION(SCIGetLocalCSR)
#define SCISetLocalCSR SISCI_FUNCTION(SCISetLocalCSR)
#define SCIQuery SISCI_FUNCTION(SCIQuery)
#define SCICreateSegment SISCI_FUNCTION(SCICreateSegment)
#define SCIGetLocalSegmentSize SISCI_FUNCTION(SCIGetLocalSegmentSize)
#define SCIGetLocalSegmentId SISCI_FUNCTION(SCIGetLocalSegmentId)
#define SCIPrepareSegment SISCI_FUNCTION(SCIPrepareSegment)
#define SCISetSegmentAvailable SISCI_FUNCTION(SCISetSegmentAvailable)
#define SCISetSegmentUnavailable SISCI_FUNCTION(SCISetSegmentUnavailable)
#define SCIRemoveSegment SISCI_FUNCTION(SCIRemoveSegment)
#define SCIWaitForLocalSegmentEvent SISCI_FUNCTION(SCIWaitForLocalSegmentEvent)
#define SCIRegisterSegmentMemory SISCI_FUNCTION(SCIRegisterSegmentMemory)
#define SCIAttachPhysicalMemory SISCI_FUNCTION(SCIAttachPhysicalMemory)
#define SCIShareSegment SISCI_FUNCTION(SCIShareSegment)
#define SCIAttachLocalSegment SISCI_FUNCTION(SCIAttachLocalSegment)
#define SCIConnectSegment SISCI_FUNCTION(SCIConnectSegment)
#define SCIDisconnectSegment SISCI_FUNCTION(SCIDisconnectSegment)
#define SCIGetRemoteSegmentSize SISCI_FUNCTION(SCIGetRemoteSegmentSize)
#define SCIGetRemoteSegmentId SISCI_FUNCTION(SCIGetRemoteSegmentId)
#define SCIGetRemoteSegmentNodeId SISCI_FUNCTION(SCIGetRemoteSegmentNodeId)
#define SCIWaitForRemoteSegmentEvent SISCI_FUNCTION(SCIWaitForRemoteSegmentEvent)
#define SCIMapRemoteSegment SISCI_FUNCTION(SCIMapRemoteSegment)
#define SCIMapLocalSegment SISCI_FUNCTION(SCIMapLocalSegment)
#define SCIUnmapSegment SISCI_FUNCTION(SCIUnmapSegment)
#define SCIGetMapPointer SISCI_FUNCTION(SCIGetMapPointer)
#define SCIGetMapPhysAddr SISCI_FUNCTION(SCIGetMapPhysAddr)
#define SCIConnectSCISpace SISCI_FUNCTION(SCIConnectSCISpace)
#define SCICreateMapSequence SISCI_FUNCTION(SCICreateMapSequence)
#define SCIRemoveSequence SISCI_FUNCTION(SCIRemoveSequence)
#define SCIStartSequence SISCI_FUNCTION(SCIStartSequence)
#define SCICheckSequence SISCI_FUNCTION(SCICheckSequence)
#define SCIStoreBarrier SISCI_FUNCTION(SCIStoreBarrier)
#define SCIFlushReadBuffers SISCI_FUNCTION(SCIFlushReadBuffers)
#define SCIFlush SISCI_FUNCTION(SCIFlush)
#define SCIMemCpy SISCI_FUNCTION(SCIMemCpy)
#define SCIMemCpy_dual SISCI_FUNCTION(SCIMemCpy_dual)
#define SCIMemCopy SISCI_FUNCTION(SCIMemCopy)
#define SCIMemWrite SISCI_FUNCTION(SCIMemWrite)
#define SCITransferBlock SISCI_FUNCTION(SCITransferBlock)
#define SCITransferBlockAsync SISCI_FUNCTION(SCITransferBlockAsync)
#define SCIWaitForBlockTransfer SISCI_FUNCTION(SCIWaitForBlockTransfer)
#define SCIAbortBlockTransfer SISCI_FUNCTION(SCIAbortBlockTransfer)
#define SCICacheSync SISCI_FUNCTION(SCICacheSync)
#define GetSciMemCopyFunction SISCI_FUNCTION(GetSciMemCopyFunction)
#define SetSciMemCopyFunction SISCI_FUNCTION(SetSciMemCopyFunction)
#define SCICreateInterrupt SISCI_FUNCTION(SCICreateInterrupt)
#define SCIRemoveInterrupt SISCI_FUNCTION(SCIRemoveInterrupt)
#define SCIWaitForInterrupt SISCI_FUNCTION(SCIWaitForInterrupt)
#define SCIConnectInterrupt SISCI_FUNCTION(SCIConnectInterrupt)
#define SCIDisconnectInterrupt SISCI_FUNCTION(SCIDisconnectInterrupt)
#define SCITriggerInterrupt SISCI_FUNCTION(SCITriggerInterrupt)
#define SCICreateDataInterrupt SISCI_FUNCTION(SCICreateDataInterrupt)
#define SCIRemoveDataInterrupt SISCI_FUNCTION(SCIRemoveDataInterrupt)
#define SCIWaitForDataInterrupt SISCI_FUNCTION(SCIWaitForDataInterrupt)
#define SCIConnectDataInterrupt SISCI_FUNCTION(SCIConnectDataInterrupt)
#define SCIDisconnectDataInterrupt SISCI_FUNCTION(SCIDisconnectDataInterrupt)
#define SCITriggerDataInterrupt SISCI_FUNCTION(SCITriggerDataInterrupt)
#define SCIRegisterInterruptFlag SISCI_FUNCTION(SCIRegisterInterruptFlag)
#define SCIEnableConditionalInterrupt SISCI_FUNCTION(SCIEnableConditionalInterrupt)
#define SCIDisableConditionalInterrupt SISCI_FUNCTION(SCIDisableConditionalInterrupt)
#define SCIGetConditionalInterruptTrigCounter SISCI_FUNCTION(SCIGetConditionalInterruptTrigCounter)
#define SCICreateDMAQueue SISCI_FUNCTION(SCICreateDMAQueue)
#define SCIRemoveDMAQueue SISCI_FUNCTION(SCIRemoveDMAQueue)
#define SCIStartDmaTransfer SISCI_FUNCTION(SCIStartDmaTransfer)
#define SCIStartDmaTransferVec SISCI_FUNCTION(SCIStartDmaTransferVec)
#define SCIStartDmaTransferMem SISCI_FUNCTION(SCIStartDmaTransferMem)
#define SCIDMAQueueState SISCI_FUNCTION(SCIDMAQueueState)
#define SCIWaitForDMAQueue SISCI_FUNCTION(SCIWaitForDMAQueue)
#define SCIAbortDMAQueue SISCI_FUNCTION(SCIAbortDMAQueue)
#define SCIEnqueueDMATransfer SISCI_FUNCTION(SCIEnqueueDMATransfer)
#define SCIPostDMAQueue SISCI_FUNCTION(SCIPostDMAQueue)
#define SCIResetDMAQueue SISCI_FUNCTION(SCIResetDMAQueue)
#define SCIphDmaEnqueue SISCI_FUNCTION(SCIphDmaEnqueue)
#define SCIphDmaStart SISCI_FUNCTION(SCIphDmaStart)
#define SCIRequestDMAChannel SISCI_FUNCTION(SCIRequestDMAChannel)
#define SCIAssignDMAChannel SISCI_FUNCTION(SCIAssignDMAChannel)
#define SCIReturnDMAChannel SISCI_FUNCTION(SCIReturnDMAChannel)
#define SCIPrepareLocalSegmentForDMA SISCI_FUNCTION(SCIPrepareLocalSegmentForDMA)
#define SCIUnprepareLocalSegmentForDMA SISCI_FUNCTION(SCIUnprepareLocalSegmentForDMA)
#define SCIPrepareRemoteSegmentForDMA SISCI_FUNCTION(SCIPrepareRemoteSegmentForDMA)
#define SCIUnprepareRemoteSegmentForDMA SISCI_FUNCTION(SCIUnprepareRemoteSegmentForDMA)
#define SCIBorrowDevice SISCI_FUNCTION(SCIBorrowDevice)
#define SCIReturnDevice SISCI_FUNCTION(SCIReturnDevice)
#define SCIReleaseExclusiveBorrow SISCI_FUNCTION(SCIReleaseExclusiveBorrow)
#define SCIGetDeviceList SISCI_FUNCTION(SCIGetDeviceList)
#define SCIGetFabricDeviceId SISCI_FUNCTION(SCIGetFabricDeviceId)
#define SCIConnectDeviceSegment SISCI_FUNCTION(SCIConnectDeviceSegment)
#define SCIConnectDeviceSegmentPath SISCI_FUNCTION(SCIConnectDeviceSegmentPath)
#define SCIConnectDeviceMemory SISCI_FUNCTION(SCIConnectDeviceMemory)
#define SCICreateDeviceSegment SISCI_FUNCTION(SCICreateDeviceSegment)
#define SCIMapLocalSegmentForDevice SISCI_FUNCTION(SCIMapLocalSegmentForDevice)
#define SCIUnmapLocalSegmentForDevice SISCI_FUNCTION(SCIUnmapLocalSegmentForDevice)
#define SCIMapRemoteSegmentForDevice SISCI_FUNCTION(SCIMapRemoteSegmentForDevice)
#define SCIUnmapRemoteSegmentForDevice SISCI_FUNCTION(SCIUnmapRemoteSegmentForDevice)
#define SCIRegisterPCIeRequester SISCI_FUNCTION(SCIRegisterPCIeRequester)
#define SCIUnregisterPCIeRequester SISCI_FUNCTION(SCIUnregisterPCIeRequester)
#endif

#ifdef SISCI_API_1
/* API 1 passes the size of an attached segment as an unsigned int. */
static inline void sisci_attach_local_segment_1(sci_desc_t sd, sci_local_segment_t *segment,
    unsigned id, unsigned *size, sci_cb_local_segment_t callback, void *arg, unsigned flags,
    sci_error_t *error)
{
    size_t whole = 0;

    SISCI_FUNCTION(SCIAttachLocalSegment)(sd, segment, id, &whole, callback, arg, flags, error);
    *size = (unsigned)whole;
}
#undef SCIAttachLocalSegment
#define SCIAttachLocalSegment sisci_attach_local_segment_1
#endif

/* Numbers */

extern const unsigned int _SISCI_PUBLIC_CONST_SCI_LOCAL_HOST;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_INFINITE_TIMEOUT;
extern const unsigned int _SISCI_PUBLIC_CONST_HOSTBRIDGE_NOT_AVAILABLE;
extern const unsigned int _SISCI_PUBLIC_CONST_HOSTBRIDGE_UNKNOWN;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_USE_CALLBACK;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_EMPTY;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_PRIVATE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_SOURCE_ONLY;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_FORCE_REMOVE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_GLOBAL;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_ALLOW_UNICAST;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_ASYNCHRONOUS_CONNECT;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_LOCK_USER_MEM;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_PHYSICAL;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_CUDA_BUFFER;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_SCIF_BUFFER;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_BROADCAST;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_AUTO_ID;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_FORCE_DISCONNECT;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_NOTIFY;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_CHANNEL_SHARED;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_POST;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_WAIT;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_RESET;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_READ;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_PHDMA;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_SYSDMA;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_USER_MEM;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_ADAPTER;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_FIXED_INTNO;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_SHARED_INT;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_CONDITIONAL_INTERRUPT;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_COUNTING_INT;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_SHARE_EXTERNAL;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_FIXED_MAP_ADDR;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_READONLY_MAP;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_LOCK_OPERATION;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_CONDITIONAL_INTERRUPT_MAP;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_UNCONDITIONAL_DATA_INTERRUPT_MAP;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_READ_PREFETCH_AGGR_HOLD_MAP;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_READ_PREFETCH_NO_HOLD_MAP;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_IO_MAP_IOSPACE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DMOVE_MAP;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_WRITES_DISABLE_GATHER_MAP;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DISABLE_128_BYTES_PACKETS;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_NO_MEMORY_LOOPBACK_MAP;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_SHARED_MAP;
extern const unsigned int _SISCI_PUBLIC_CONST_WRITE_BACK_CACHE_MAP;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_FAST_BARRIER;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_NO_FLUSH;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_NO_STORE_BARRIER;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_ERROR_CHECK;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_BLOCK_READ;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_CACHE_FLUSH;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_CACHE_INVALIDATE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_PCIE_REQUESTER_GLOBAL;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_EXCLUSIVE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DEVICE_SIDE_ONLY;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_LOCAL_ONLY;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_DEVICE_PREFER_BANDWIDTH;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_HOST_PREFER_BANDWIDTH;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_SPECIFY_PATH;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_SPECIFY_SLOT;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_THREAD_SAFE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_FLAG_NO_MEMORY_LOOPBACK;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_VENDORID;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_API;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_SYSTEM;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_LOCAL_SEGMENT;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_REMOTE_SEGMENT;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_MAP;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_DMA;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_DEVICE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_SISCI_DRIVER_VERSION;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_DMA_SIZE_ALIGNMENT;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_DMA_OFFSET_ALIGNMENT;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_DMA_MTU;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_SUGGESTED_MIN_DMA_SIZE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_SUGGESTED_MIN_BLOCK_SIZE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_NODEID;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_SERIAL_NUMBER;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_CARD_TYPE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_CONFIGURED;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_OPERATIONAL;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_NUMBER_OF_STREAMS;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_STREAM_BUFFER_SIZE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_HW_LINK_STATUS_IS_OK;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_NUMBER;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_INSTANCE_NUMBER;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_FIRMWARE_OK;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_CONNECTED_TO_SWITCH;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LOCAL_SWITCH_TYPE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LOCAL_SWITCH_PORT_NUMBER;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_CONNECTED_TO_EXPECTED_SWITCH_PORT;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_ATT_PAGE_SIZE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_ATT_NUMBER_OF_ENTRIES;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_ATT_AVAILABLE_ENTRIES;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_SCI_Q_ADAPTER_PHYS_MEM_NODEID;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_SCI_Q_ADAPTER_PHYS_MBX_NODEID;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_PHYS_LINK_PORT_NODEID;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_SCI_LINK_FREQUENCY;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_B_LINK_FREQUENCY;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_IO_BUS_FREQUENCY;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_NUMBER_OF_LINKS;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_WIDTH;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_SPEED;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_UPTIME;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_DOWNTIME;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_CABLE_INSERTED;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_ENABLED;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_PARTNER_PORT_NO;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_MCAST_MAX_GROUPS;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_BDF;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_SYSTEM_HOSTBRIDGE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_SYSTEM_WRITE_POSTING_ENABLED;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_SYSTEM_WRITE_COMBINING_ENABLED;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_SYSTEM_CPU_CACHE_LINE_SIZE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_LOCAL_SEGMENT_IOADDR;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_LOCAL_SEGMENT_VIRTUAL_KERNEL_ADDR;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_LOCAL_SEGMENT_PHYS_ADDR;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_REMOTE_SEGMENT_IOADDR;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_MAP_MAPPED_TO_LOCAL_TARGET;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_MAP_IOADDR;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_MAP_PHYS_ADDR;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_MAP_QUERY_REMOTE_MAPPED_TO_LOCAL_TARGET;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_DMA_AVAILABLE;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_DMA_CAPABILITIES;
extern const unsigned int _SISCI_PUBLIC_CONST_SCI_Q_DEVICE_INFO;

#define SCI_LOCAL_HOST _SISCI_PUBLIC_CONST_SCI_LOCAL_HOST
#define SCI_INFINITE_TIMEOUT _SISCI_PUBLIC_CONST_SCI_INFINITE_TIMEOUT
#define HOSTBRIDGE_NOT_AVAILABLE _SISCI_PUBLIC_CONST_HOSTBRIDGE_NOT_AVAILABLE
#define HOSTBRIDGE_UNKNOWN _SISCI_PUBLIC_CONST_HOSTBRIDGE_UNKNOWN
#define SCI_FLAG_USE_CALLBACK _SISCI_PUBLIC_CONST_SCI_FLAG_USE_CALLBACK
#define SCI_FLAG_EMPTY _SISCI_PUBLIC_CONST_SCI_FLAG_EMPTY
#define SCI_FLAG_PRIVATE _SISCI_PUBLIC_CONST_SCI_FLAG_PRIVATE
#define SCI_FLAG_DMA_SOURCE_ONLY _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_SOURCE_ONLY
#define SCI_FLAG_FORCE_REMOVE _SISCI_PUBLIC_CONST_SCI_FLAG_FORCE_REMOVE
#define SCI_FLAG_DMA_GLOBAL _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_GLOBAL
#define SCI_FLAG_ALLOW_UNICAST _SISCI_PUBLIC_CONST_SCI_FLAG_ALLOW_UNICAST
#define SCI_FLAG_ASYNCHRONOUS_CONNECT _SISCI_PUBLIC_CONST_SCI_FLAG_ASYNCHRONOUS_CONNECT
#define SCI_FLAG_LOCK_USER_MEM _SISCI_PUBLIC_CONST_SCI_FLAG_LOCK_USER_MEM
#define SCI_FLAG_PHYSICAL _SISCI_PUBLIC_CONST_SCI_FLAG_PHYSICAL
#define SCI_FLAG_CUDA_BUFFER _SISCI_PUBLIC_CONST_SCI_FLAG_CUDA_BUFFER
#define SCI_FLAG_SCIF_BUFFER _SISCI_PUBLIC_CONST_SCI_FLAG_SCIF_BUFFER
#define SCI_FLAG_BROADCAST _SISCI_PUBLIC_CONST_SCI_FLAG_BROADCAST
#define SCI_FLAG_AUTO_ID _SISCI_PUBLIC_CONST_SCI_FLAG_AUTO_ID
#define SCI_FLAG_FORCE_DISCONNECT _SISCI_PUBLIC_CONST_SCI_FLAG_FORCE_DISCONNECT
#define SCI_FLAG_NOTIFY _SISCI_PUBLIC_CONST_SCI_FLAG_NOTIFY
#define SCI_FLAG_DMA_CHANNEL_SHARED _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_CHANNEL_SHARED
#define SCI_FLAG_DMA_POST _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_POST
#define SCI_FLAG_DMA_WAIT _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_WAIT
#define SCI_FLAG_DMA_RESET _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_RESET
#define SCI_FLAG_DMA_READ _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_READ
#define SCI_FLAG_DMA_PHDMA _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_PHDMA
#define SCI_FLAG_DMA_SYSDMA _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_SYSDMA
#define SCI_FLAG_DMA_USER_MEM _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_USER_MEM
#define SCI_FLAG_DMA_ADAPTER _SISCI_PUBLIC_CONST_SCI_FLAG_DMA_ADAPTER
#define SCI_FLAG_FIXED_INTNO _SISCI_PUBLIC_CONST_SCI_FLAG_FIXED_INTNO
#define SCI_FLAG_SHARED_INT _SISCI_PUBLIC_CONST_SCI_FLAG_SHARED_INT
#define SCI_FLAG_CONDITIONAL_INTERRUPT _SISCI_PUBLIC_CONST_SCI_FLAG_CONDITIONAL_INTERRUPT
#define SCI_FLAG_COUNTING_INT _SISCI_PUBLIC_CONST_SCI_FLAG_COUNTING_INT
#define SCI_FLAG_SHARE_EXTERNAL _SISCI_PUBLIC_CONST_SCI_FLAG_SHARE_EXTERNAL
#define SCI_FLAG_FIXED_MAP_ADDR _SISCI_PUBLIC_CONST_SCI_FLAG_FIXED_MAP_ADDR
#define SCI_FLAG_READONLY_MAP _SISCI_PUBLIC_CONST_SCI_FLAG_READONLY_MAP
#define SCI_FLAG_LOCK_OPERATION _SISCI_PUBLIC_CONST_SCI_FLAG_LOCK_OPERATION
#define SCI_FLAG_CONDITIONAL_INTERRUPT_MAP _SISCI_PUBLIC_CONST_SCI_FLAG_CONDITIONAL_INTERRUPT_MAP
#define SCI_FLAG_UNCONDITIONAL_DATA_INTERRUPT_MAP \
    _SISCI_PUBLIC_CONST_SCI_FLAG_UNCONDITIONAL_DATA_INTERRUPT_MAP
#define SCI_FLAG_READ_PREFETCH_AGGR_HOLD_MAP \
    _SISCI_PUBLIC_CONST_SCI_FLAG_READ_PREFETCH_AGGR_HOLD_MAP
#define SCI_FLAG_READ_PREFETCH_NO_HOLD_MAP _SISCI_PUBLIC_CONST_SCI_FLAG_READ_PREFETCH_NO_HOLD_MAP
#define SCI_FLAG_IO_MAP_IOSPACE _SISCI_PUBLIC_CONST_SCI_FLAG_IO_MAP_IOSPACE
#define SCI_FLAG_DMOVE_MAP _SISCI_PUBLIC_CONST_SCI_FLAG_DMOVE_MAP
#define SCI_FLAG_WRITES_DISABLE_GATHER_MAP _SISCI_PUBLIC_CONST_SCI_FLAG_WRITES_DISABLE_GATHER_MAP
#define SCI_FLAG_DISABLE_128_BYTES_PACKETS _SISCI_PUBLIC_CONST_SCI_FLAG_DISABLE_128_BYTES_PACKETS
#define SCI_FLAG_NO_MEMORY_LOOPBACK_MAP _SISCI_PUBLIC_CONST_SCI_FLAG_NO_MEMORY_LOOPBACK_MAP
#define SCI_FLAG_SHARED_MAP _SISCI_PUBLIC_CONST_SCI_FLAG_SHARED_MAP
#define SCI_FLAG_WRITE_BACK_CACHE_MAP _SISCI_PUBLIC_CONST_WRITE_BACK_CACHE_MAP
#define SCI_FLAG_FAST_BARRIER _SISCI_PUBLIC_CONST_SCI_FLAG_FAST_BARRIER
#define SCI_FLAG_NO_FLUSH _SISCI_PUBLIC_CONST_SCI_FLAG_NO_FLUSH
#define SCI_FLAG_NO_STORE_BARRIER _SISCI_PUBLIC_CONST_SCI_FLAG_NO_STORE_BARRIER
#define SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY _SISCI_PUBLIC_CONST_SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY
#define SCI_FLAG_ERROR_CHECK _SISCI_PUBLIC_CONST_SCI_FLAG_ERROR_CHECK
#define SCI_FLAG_BLOCK_READ _SISCI_PUBLIC_CONST_SCI_FLAG_BLOCK_READ
#define SCI_FLAG_CACHE_FLUSH _SISCI_PUBLIC_CONST_SCI_FLAG_CACHE_FLUSH
#define SCI_FLAG_CACHE_INVALIDATE _SISCI_PUBLIC_CONST_SCI_FLAG_CACHE_INVALIDATE
#define SCI_FLAG_PCIE_REQUESTER_GLOBAL _SISCI_PUBLIC_CONST_SCI_FLAG_PCIE_REQUESTER_GLOBAL
#define SCI_FLAG_EXCLUSIVE _SISCI_PUBLIC_CONST_SCI_FLAG_EXCLUSIVE
#define SCI_FLAG_DEVICE_SIDE_ONLY _SISCI_PUBLIC_CONST_SCI_FLAG_DEVICE_SIDE_ONLY
#define SCI_FLAG_LOCAL_ONLY _SISCI_PUBLIC_CONST_SCI_FLAG_LOCAL_ONLY
#define SCI_FLAG_DEVICE_PREFER_BANDWIDTH _SISCI_PUBLIC_CONST_SCI_FLAG_DEVICE_PREFER_BANDWIDTH
#define SCI_FLAG_HOST_PREFER_BANDWIDTH _SISCI_PUBLIC_CONST_SCI_FLAG_HOST_PREFER_BANDWIDTH
#define SCI_FLAG_SPECIFY_PATH _SISCI_PUBLIC_CONST_SCI_FLAG_SPECIFY_PATH
#define SCI_FLAG_SPECIFY_SLOT _SISCI_PUBLIC_CONST_SCI_FLAG_SPECIFY_SLOT
#define SCI_FLAG_THREAD_SAFE _SISCI_PUBLIC_CONST_SCI_FLAG_THREAD_SAFE
#define SCI_FLAG_NO_MEMORY_LOOPBACK _SISCI_PUBLIC_CONST_SCI_FLAG_NO_MEMORY_LOOPBACK
#define SCI_Q_VENDORID _SISCI_PUBLIC_CONST_SCI_Q_VENDORID
#define SCI_Q_API _SISCI_PUBLIC_CONST_SCI_Q_API
#define SCI_Q_ADAPTER _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER
#define SCI_Q_SYSTEM _SISCI_PUBLIC_CONST_SCI_Q_SYSTEM
#define SCI_Q_LOCAL_SEGMENT _SISCI_PUBLIC_CONST_SCI_Q_LOCAL_SEGMENT
#define SCI_Q_REMOTE_SEGMENT _SISCI_PUBLIC_CONST_SCI_Q_REMOTE_SEGMENT
#define SCI_Q_MAP _SISCI_PUBLIC_CONST_SCI_Q_MAP
#define SCI_Q_DMA _SISCI_PUBLIC_CONST_SCI_Q_DMA
#define SCI_Q_DEVICE _SISCI_PUBLIC_CONST_SCI_Q_DEVICE
#define SCI_Q_SISCI_DRIVER_VERSION _SISCI_PUBLIC_CONST_SCI_Q_SISCI_DRIVER_VERSION
#define SCI_Q_ADAPTER_DMA_SIZE_ALIGNMENT _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_DMA_SIZE_ALIGNMENT
#define SCI_Q_ADAPTER_DMA_OFFSET_ALIGNMENT _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_DMA_OFFSET_ALIGNMENT
#define SCI_Q_ADAPTER_DMA_MTU _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_DMA_MTU
#define SCI_Q_ADAPTER_SUGGESTED_MIN_DMA_SIZE \
    _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_SUGGESTED_MIN_DMA_SIZE
#define SCI_Q_ADAPTER_SUGGESTED_MIN_BLOCK_SIZE \
    _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_SUGGESTED_MIN_BLOCK_SIZE
#define SCI_Q_ADAPTER_NODEID _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_NODEID
#define SCI_Q_ADAPTER_SERIAL_NUMBER _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_SERIAL_NUMBER
#define SCI_Q_ADAPTER_CARD_TYPE _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_CARD_TYPE
#define SCI_Q_ADAPTER_CONFIGURED _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_CONFIGURED
#define SCI_Q_ADAPTER_LINK_OPERATIONAL _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_OPERATIONAL
#define SCI_Q_ADAPTER_NUMBER_OF_STREAMS _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_NUMBER_OF_STREAMS
#define SCI_Q_ADAPTER_STREAM_BUFFER_SIZE _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_STREAM_BUFFER_SIZE
#define SCI_Q_ADAPTER_HW_LINK_STATUS_IS_OK _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_HW_LINK_STATUS_IS_OK
#define SCI_Q_ADAPTER_NUMBER _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_NUMBER
#define SCI_Q_ADAPTER_INSTANCE_NUMBER _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_INSTANCE_NUMBER
#define SCI_Q_ADAPTER_FIRMWARE_OK _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_FIRMWARE_OK
#define SCI_Q_ADAPTER_CONNECTED_TO_SWITCH _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_CONNECTED_TO_SWITCH
#define SCI_Q_ADAPTER_LOCAL_SWITCH_TYPE _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LOCAL_SWITCH_TYPE
#define SCI_Q_ADAPTER_LOCAL_SWITCH_PORT_NUMBER \
    _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LOCAL_SWITCH_PORT_NUMBER
#define SCI_Q_ADAPTER_CONNECTED_TO_EXPECTED_SWITCH_PORT \
    _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_CONNECTED_TO_EXPECTED_SWITCH_PORT
#define SCI_Q_ADAPTER_ATT_PAGE_SIZE _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_ATT_PAGE_SIZE
#define SCI_Q_ADAPTER_ATT_NUMBER_OF_ENTRIES \
    _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_ATT_NUMBER_OF_ENTRIES
#define SCI_Q_ADAPTER_ATT_AVAILABLE_ENTRIES \
    _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_ATT_AVAILABLE_ENTRIES
#define SCI_Q_ADAPTER_PHYS_MEM_NODEID _SISCI_PUBLIC_CONST_SCI_Q_SCI_Q_ADAPTER_PHYS_MEM_NODEID
#define SCI_Q_ADAPTER_PHYS_MBX_NODEID _SISCI_PUBLIC_CONST_SCI_Q_SCI_Q_ADAPTER_PHYS_MBX_NODEID
#define SCI_Q_ADAPTER_PHYS_LINK_PORT_NODEID \
    _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_PHYS_LINK_PORT_NODEID
#define SCI_Q_ADAPTER_SCI_LINK_FREQUENCY _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_SCI_LINK_FREQUENCY
#define SCI_Q_ADAPTER_B_LINK_FREQUENCY _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_B_LINK_FREQUENCY
#define SCI_Q_ADAPTER_IO_BUS_FREQUENCY _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_IO_BUS_FREQUENCY
#define SCI_Q_ADAPTER_NUMBER_OF_LINKS _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_NUMBER_OF_LINKS
#define SCI_Q_ADAPTER_LINK_WIDTH _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_WIDTH
#define SCI_Q_ADAPTER_LINK_SPEED _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_SPEED
#define SCI_Q_ADAPTER_LINK_UPTIME _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_UPTIME
#define SCI_Q_ADAPTER_LINK_DOWNTIME _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_DOWNTIME
#define SCI_Q_ADAPTER_LINK_CABLE_INSERTED _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_CABLE_INSERTED
#define SCI_Q_ADAPTER_LINK_ENABLED _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_ENABLED
#define SCI_Q_ADAPTER_LINK_PARTNER_PORT_NO _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_LINK_PARTNER_PORT_NO
#define SCI_Q_ADAPTER_MCAST_MAX_GROUPS _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_MCAST_MAX_GROUPS
#define SCI_Q_ADAPTER_BDF _SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_BDF
#define SCI_Q_SYSTEM_HOSTBRIDGE _SISCI_PUBLIC_CONST_SCI_Q_SYSTEM_HOSTBRIDGE
#define SCI_Q_SYSTEM_WRITE_POSTING_ENABLED _SISCI_PUBLIC_CONST_SCI_Q_SYSTEM_WRITE_POSTING_ENABLED
#define SCI_Q_SYSTEM_WRITE_COMBINING_ENABLED \
    _SISCI_PUBLIC_CONST_SCI_Q_SYSTEM_WRITE_COMBINING_ENABLED
#define SCI_Q_SYSTEM_CPU_CACHE_LINE_SIZE _SISCI_PUBLIC_CONST_SCI_Q_SYSTEM_CPU_CACHE_LINE_SIZE
#define SCI_Q_LOCAL_SEGMENT_IOADDR _SISCI_PUBLIC_CONST_SCI_Q_LOCAL_SEGMENT_IOADDR
#define SCI_Q_LOCAL_SEGMENT_VIRTUAL_KERNEL_ADDR \
    _SISCI_PUBLIC_CONST_SCI_Q_LOCAL_SEGMENT_VIRTUAL_KERNEL_ADDR
#define SCI_Q_LOCAL_SEGMENT_PHYS_ADDR _SISCI_PUBLIC_CONST_SCI_Q_LOCAL_SEGMENT_PHYS_ADDR
#define SCI_Q_REMOTE_SEGMENT_IOADDR _SISCI_PUBLIC_CONST_SCI_Q_REMOTE_SEGMENT_IOADDR
#define SCI_Q_MAP_MAPPED_TO_LOCAL_TARGET _SISCI_PUBLIC_CONST_SCI_Q_MAP_MAPPED_TO_LOCAL_TARGET
#define SCI_Q_MAP_IOADDR _SISCI_PUBLIC_CONST_SCI_Q_MAP_IOADDR
#define SCI_Q_MAP_PHYS_ADDR _SISCI_PUBLIC_CONST_SCI_Q_MAP_PHYS_ADDR
#define SCI_Q_MAP_QUERY_REMOTE_MAPPED_TO_LOCAL_TARGET \
    _SISCI_PUBLIC_CONST_SCI_Q_MAP_QUERY_REMOTE_MAPPED_TO_LOCAL_TARGET
#define SCI_Q_DMA_AVAILABLE _SISCI_PUBLIC_CONST_SCI_Q_DMA_AVAILABLE
#define SCI_Q_DMA_CAPABILITIES _SISCI_PUBLIC_CONST_SCI_Q_DMA_CAPABILITIES
#define SCI_Q_DEVICE_INFO _SISCI_PUBLIC_CONST_SCI_Q_DEVICE_INFO
#define FLUSH_CPU_BUFFERS_ONLY SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY

#ifdef __cplusplus
}
#endif

#endif
